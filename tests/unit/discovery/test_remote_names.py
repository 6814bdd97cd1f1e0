"""Files of other file systems than the local one, as fsspec has them."""

from __future__ import annotations

from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from coordlog.errors import SourceError
from coordlog.spark_integration.files import listing
from coordlog.spark_integration.files.listing import InputFiles


@pytest.mark.parametrize("error", [PermissionError("no"), OSError("503"), ConnectionError("cut")])
def test_an_object_that_cannot_be_asked_for_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """`isfile` of fsspec is False after any error: an object with the name of a folder would be missing."""

    class Store(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        cachable = False

        def info(self, path: str, **options: Any) -> Any:  # noqa: ANN401, the base's
            if path.endswith("b.csv"):
                raise error
            return super().info(path, **options)

    store = Store()
    store.store = {}
    for name in ("a.csv", "b.csv/c"):
        store.pipe_file(f"/in/{name}", b"i\n1\n")
    monkeypatch.setattr(listing, "url_to_fs", lambda _url, **_options: (store, "/in/*.csv"))
    with pytest.raises(SourceError, match=str(error)):
        InputFiles(url="memory://in/*.csv").list()


@pytest.mark.parametrize("own", [{}, {"timeout": 5}])
def test_a_timeout_of_the_storage_options_is_kept(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    given: list[dict[str, Any]] = []

    class Web(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        def info(self, path: str, **_options: Any) -> Any:  # noqa: ANN401, the base's
            return {"name": path, "size": 4, "type": "file"}

    def url_to_fs(url: str, **options: Any) -> tuple[Web, str]:  # noqa: ANN401, fsspec's
        given.append(options)
        return Web(), url

    monkeypatch.setattr(listing, "url_to_fs", url_to_fs)
    InputFiles(url="http://host/x.csv", storage_options=own).list()
    timeout = given[0]["timeout"]
    assert (timeout == own["timeout"]) if own else (timeout.total is None and timeout.sock_read)
