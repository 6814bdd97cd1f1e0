"""Names of a web server: its folders are pages, and the links of a page are names."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from coordlog.errors import SourceError, SourceUnavailableError
from coordlog.spark_integration.files import listing, remote_names
from coordlog.spark_integration.files.listing import InputFiles

SITE = "http://host"
REQUESTS_MAX = 20


class Web(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Pages with links, as fsspec's file system of web servers sends them."""

    protocol = ("http", "https")
    cachable = False

    def __init__(self, pages: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self._pages, self._request_count = pages, 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def cat_file(
        self,
        path: str,
        start: int | None = None,
        end: int | None = None,
        **_options: Any,  # noqa: ANN401, the base's
    ) -> bytes:
        assert start is end is None
        self._request_count += 1
        assert self._request_count <= REQUESTS_MAX, "it lists one page for ever"
        name = path.removeprefix(SITE)
        if name not in self._pages:
            raise FileNotFoundError(path)
        links = [html.escape(link) for link in self._pages[name]]
        return "".join(f'<li><A class="x" HREF="{link}">here</A>' for link in links).encode()

    def info(self, path: str, **_options: Any) -> dict[str, Any]:  # noqa: ANN401, the base's
        return {**self._info(path), "size": 4}

    def _info(self, path: str) -> dict[str, Any]:
        kind = "directory" if path.endswith("/") else "file"
        return {"name": path, "size": None, "type": kind}


def names_of(
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    web: Web,
    **options: Any,  # noqa: ANN401
) -> list[str]:
    monkeypatch.setattr(listing, "url_to_fs", lambda url, **_options: (web, url))
    monkeypatch.setattr(remote_names, "content_of", lambda _web, page: (web.cat_file(page), page))
    files = InputFiles(url=f"{SITE}/{pattern}", **options).list()
    return [file.path.removeprefix(f"{SITE}/") for file in files]


@pytest.mark.parametrize("pattern", ["in/", "in/**/*.csv", "in/*"])
def test_a_page_that_links_to_itself_is_listed_once(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """As the path above a listing does: the listing had no end."""
    pages = {
        "/in/": ["/in/", "/in/a/", "/in/x.csv"],
        "/in/a/": ["/in/a/", "/in/a/y.csv"],
    }
    pages |= {name.rstrip("/"): links for name, links in pages.items()}

    assert names_of(monkeypatch, pattern, Web(pages)) == ["in/a/y.csv", "in/x.csv"]


@pytest.mark.parametrize("pattern", ["in/*", "in/a*", "in/**/*.csv", "in/*/*.csv", "*/a/*.csv"])
def test_a_folder_of_a_glob_is_listed_with_its_slash(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Without it a server may have no page, or lead to another port: no file was found."""
    pages = {"/": ["/in/"], "/in/": ["/in/a/"], "/in/a/": ["/in/a/y.csv"]}

    assert names_of(monkeypatch, pattern, Web(pages)) == ["in/a/y.csv"]


@pytest.mark.parametrize("pattern", ["in/", "in/*", "in/**", "in/**/*.csv"])
def test_links_to_a_page_in_another_order_are_no_names(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """As an index of Apache has them: their pages were read as files, and `**` had no end."""
    own = ["/in/?C=N;O=D", "/in/#top", "/in/a/"]
    pages = {
        "/in/": [*own, "/in/x.csv"],
        "/in/?C=N;O=D": [f"/in/?C=N;O=D/{name}" for name in ("?C=N;O=D", "a/", "x.csv")],
        "/in/a/": ["/in/a/?C=N;O=D", "/in/a/y.csv?version=2"],
    }

    names = names_of(monkeypatch, pattern, Web(pages))
    assert names == [
        name
        for name in ("in/a/y.csv?version=2", "in/x.csv")
        if not pattern.endswith(".csv") or name.endswith(".csv")
    ]


@pytest.mark.parametrize("pattern", ["in/", "in/*", "in/**/*.csv"])
def test_links_that_begin_with_a_dot_are_names(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """As an index of Caddy has them: they counted as hidden, or as outside of the folder."""
    pages = {"/in/": ["./a/", "./x.csv"], "/in/a/": ["./y.csv"]}

    assert names_of(monkeypatch, pattern, Web(pages)) == ["in/a/y.csv", "in/x.csv"]


@pytest.mark.parametrize("pattern", ["in/", "in/*", "in/**", "in/**/*.csv"])
@pytest.mark.parametrize(
    "above", ["./../", "../../", "..", "", "/", "/in/../", "https://host/", "http://other/in/z.csv"]
)
def test_links_to_a_page_above_are_not_followed(
    monkeypatch: pytest.MonkeyPatch, pattern: str, above: str
) -> None:
    """As pages of Caddy and Node's http-server have them: a listing had no end."""
    pages = {"/in/": ["./a/"], "/in/a/": [above, "../", "./y.csv"], "/": ["./in/", "./w.csv"]}

    assert names_of(monkeypatch, pattern, Web(pages)) == ["in/a/y.csv"]


def test_names_of_links_are_those_that_a_browser_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names such as `httpd.csv` were left out: they counted as URLs of another server."""
    relative = [
        "a&b.csv",
        "c;d.csv",
        "http.csv",
        "https_log.csv",
        "httpd/",
        "it's.csv",
        "x%20y.csv",
    ]
    whole = ["/in/p.csv", "http://host/in/q.csv", "https://host/in/r.csv", "//host/in/s.csv"]
    pages = {"/in/": [*relative, *whole, "mailto:a@b", "javascript:x()"], "/in/httpd/": ["z.csv"]}

    names = [*relative, *(f"{name}.csv" for name in "pqrs"), "httpd/z.csv"]
    expected = sorted(f"in/{name}" for name in names if name != "httpd/")
    assert names_of(monkeypatch, "in/", Web(pages)) == expected


@pytest.mark.parametrize("url", ["in/s%C3%BC%20d/", "in/sü d/", "in/*"])
@pytest.mark.parametrize("link", ["/in/s%c3%bc%20d/", "/in/sü d/", "/in/s%C3%BC%20d/"])
def test_a_folder_that_a_server_writes_in_another_way_is_the_same(
    monkeypatch: pytest.MonkeyPatch, url: str, link: str
) -> None:
    """As Apache and serve write it: an empty folder was refused, and whole paths of another one left out."""
    pages = {link: [f"{link}a.csv", f"{link}b/"], f"{link}b/": [link]}
    web = Web(
        {"/in/": [link], **pages, **{f"/{url}{name}": pages[link + name] for name in ("", "b/")}}
    )

    expected = [f"{link[1:] if url == 'in/*' else url}a.csv"]
    assert names_of(monkeypatch, url, web) == expected


@pytest.mark.parametrize("pattern", ["in/", "in/*/*", "in/**/*.csv", "in/**"])
@pytest.mark.parametrize("name", ["a", "_b", ".c"])
def test_a_folder_that_is_left_out_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, pattern: str, name: str
) -> None:
    """It may be one that the server does not list: `exclude` was no way out."""
    pages = {"/in/": [f"/in/{name}/", "/in/d/"], "/in/d/": ["y.csv"], f"/in/{name}/": ["/login"]}

    assert names_of(monkeypatch, pattern, Web(pages), exclude=("a",)) == ["in/d/y.csv"]


@pytest.mark.parametrize("pattern", ["in/", "in/*/*.csv", "in/**/*.csv"])
def test_a_page_that_is_no_index_is_an_error(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    """Such as of a login, at the name of a folder: the folder was left out."""
    pages = {"/in/": ["/in/a/", "/in/b/"], "/in/a/": ["/in/a/y.csv"], "/in/b/": ["/", "/help"]}
    with pytest.raises(
        SourceUnavailableError,
        match=r"the page at .*/in/b/ is no index: it links.*`--exclude NAME`",
    ):
        names_of(monkeypatch, pattern, Web(pages))

    for above in ("../", "/in/", f"{SITE}/in/"):
        pages["/in/b/"] = [above]
        assert names_of(monkeypatch, pattern, Web(pages)) == ["in/a/y.csv"]


def test_a_url_with_a_query_is_refused_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SourceError, match=r"`\?` is a wildcard.* no query is sent.; fetch the file"
    ):
        names_of(monkeypatch, "in/rows.csv?download=1", Web({"/in/": ["/in/rows.csv"]}))


def test_a_link_with_a_query_or_a_fragment_is_no_second_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As indexes have them beside the plain link: the rows were read twice."""
    links = ["/in/x.csv", "/in/x.csv?download=1", "/in/x.csv#top", "/in/y.csv?version=2"]

    names = names_of(monkeypatch, "in/", Web({"/in/": links}))
    assert names == ["in/x.csv", "in/y.csv?version=2"]


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

    def url_to_fs(url: str, **options: Any) -> tuple[Web, str]:  # noqa: ANN401, fsspec's
        given.append(options)
        return Web({}), url

    monkeypatch.setattr(listing, "url_to_fs", url_to_fs)
    InputFiles(url=f"{SITE}/x.csv", storage_options=own).list()
    timeout = given[0]["timeout"]
    assert (timeout == own["timeout"]) if own else (timeout.total is None and timeout.sock_read)
