"""Archiving and deleting a file that was read: exactly that file, over a crash at each step, and never a row lost."""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import OptionError
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.projections.splits.fold import SplitsState, WithEnumerator
from coordlog.schemas.payload import encode_versioned, payload_type_of
from coordlog.schemas.source_types import ReleasedInput, ReleaseSplits, SplitsReleased
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.payloads import FileSplit, ReadFile
from coordlog.spark_integration.files.places import check_apart
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source import release
from coordlog.spark_integration.files.source.disposal import NotDisposedError, dispose
from coordlog.spark_integration.files.source.release import (
    CommittedFiles,
    FileRelease,
    ReleaseResults,
)
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from fakes.split_fakes import split

STEPS = ("checked", "folder made", "set aside", "archived")


class CrashedError(BaseException):
    """The process ends here."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "day").mkdir(parents=True)
    return tmp_path / "in"


def files_of(folder: Path) -> InputFiles:
    return FileSource(folder, watch=Watch())._discovery.files


def read_file(folder: Path, name: str = "day/a.csv", *, target: Path | None = None) -> ReadFile:
    """The file as a listing has it now."""
    (listed,) = [file for file in files_of(folder).walk() if file.path == str(folder / name)]
    return ReadFile(
        path=listed.path,
        size_bytes=listed.size_bytes,
        mark=listed.mark,
        real_path=listed.real_path,
        target="" if target is None else str(target),
    )


def write(path: Path, text: str = "i\n1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names_below(folder: Path) -> list[str]:
    """Every name, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- local files ----------------------------------------------------------------------------------
def test_a_read_file_is_deleted_and_nothing_else(folder: Path) -> None:
    write(folder / "day/a.csv")
    write(folder / "day/b.csv")
    file = read_file(folder)
    dispose(files_of(folder), file)

    assert names_below(folder) == ["day", "day/b.csv"]
    dispose(files_of(folder), file)  # one that is gone needs nothing more
    assert names_below(folder) == ["day", "day/b.csv"]


def test_a_read_file_is_moved_to_its_place_in_the_archive(folder: Path, tmp_path: Path) -> None:
    source = write(folder / "day/a.csv")
    inode = source.stat().st_ino
    dispose(files_of(folder), read_file(folder, target=tmp_path / "done/day/a.csv"))

    assert names_below(folder) == ["day"]
    assert (tmp_path / "done/day/a.csv").stat().st_ino == inode


def test_a_file_that_another_folder_has_listed_is_moved(folder: Path, tmp_path: Path) -> None:
    write(folder / "day/a.csv")
    file = replace(read_file(folder, target=tmp_path / "done/a.csv"), real_path="a.csv")
    dispose(files_of(folder), file)

    assert names_below(folder) == ["day"]


@pytest.mark.parametrize("is_archived", [True, False])
@pytest.mark.parametrize("is_linked", [True, False], ids=["one file system", "two"])
@pytest.mark.parametrize("step", [*STEPS, "copied"])
@pytest.mark.fault("X11")
def test_after_a_crash_at_any_step_the_next_try_does_the_rest(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    step: str,
    is_linked: bool,
    is_archived: bool,
) -> None:
    if not is_linked:
        _without_links_to(tmp_path / "done", monkeypatch)
    write(folder / "day/a.csv", "i\n7\n")
    target = tmp_path / "done/day/a.csv" if is_archived else None
    file = read_file(folder, target=target)

    def crash(at: str) -> None:
        if at == step:
            raise CrashedError

    for _ in range(3):
        try:
            dispose(files_of(folder), file, crash)
        except CrashedError:
            listed = [one.path for one in files_of(folder).walk()]
            assert listed in ([], [file.path]), "no other name is visible"
            contents = {path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
            assert contents == {"i\n7\n"}, "it is somewhere, whole"
    dispose(files_of(folder), file)

    assert names_below(folder) == ["day"]
    if target is not None:
        assert names_below(tmp_path / "done") == ["day", "day/a.csv"]
        assert target.read_text() == "i\n7\n"


def _without_links_to(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive is on another file system, as far as links from outside of it tell."""
    link = os.link

    def linked(source: str, target: str) -> None:
        if str(target).startswith(str(archive)) and not str(source).startswith(str(archive)):
            raise OSError(18, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(os, "link", linked)


@pytest.mark.parametrize("target", ["done/a.csv", None])
def test_a_file_that_has_changed_since_it_was_read_stays(
    folder: Path, tmp_path: Path, target: str | None
) -> None:
    path = write(folder / "day/a.csv")
    file = read_file(folder, target=None if target is None else tmp_path / target)
    write(path, "i\n1\n2\n")

    with pytest.raises(NotDisposedError, match="it has changed since it was read: it has 6") as why:
        dispose(files_of(folder), file)
    assert why.value.is_final
    assert path.read_text() == "i\n1\n2\n"
    assert names_below(folder) == ["day", "day/a.csv"]


def test_a_file_of_the_same_size_and_time_in_its_place_stays(folder: Path) -> None:
    path = write(folder / "day/a.csv")
    file, status = read_file(folder), path.stat()
    write(folder / "day/new", "i\n2\n").rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(NotDisposedError, match="another file of the same size and time"):
        dispose(files_of(folder), file)
    assert path.read_text() == "i\n2\n"


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("step", ["checked", "folder made"])
def test_a_file_that_is_replaced_at_the_last_moment_is_put_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, *, has_links: bool
) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted", source, None, target)

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    path = write(folder / "day/a.csv")
    file = read_file(folder)

    def replace_it(at: str) -> None:
        if at == step:
            write(folder / "day/.new", "i\n2\n").rename(path)

    with pytest.raises(NotDisposedError, match="it has changed"):
        dispose(files_of(folder), file, replace_it)
    assert names_below(folder) == ["day", "day/a.csv"]
    assert path.read_text() == "i\n2\n"


def test_a_new_file_of_the_name_is_not_touched_while_the_old_one_goes(
    folder: Path, tmp_path: Path
) -> None:
    path = write(folder / "day/a.csv")
    file = read_file(folder, target=tmp_path / "done/a.csv")

    def write_again(at: str) -> None:
        if at == "set aside":
            write(path, "i\n2\n")

    dispose(files_of(folder), file, write_again)
    assert (tmp_path / "done/a.csv").read_text() == "i\n1\n"
    assert path.read_text() == "i\n2\n"


def test_after_a_crash_a_new_file_of_the_name_is_not_taken_for_the_old_one(
    folder: Path, tmp_path: Path
) -> None:
    path = write(folder / "day/a.csv")
    file = read_file(folder, target=tmp_path / "done/a.csv")

    def crash(at: str) -> None:
        if at == "set aside":
            raise CrashedError

    with pytest.raises(CrashedError):
        dispose(files_of(folder), file, crash)
    write(path, "i\n2\n")
    dispose(files_of(folder), file)
    assert (tmp_path / "done/a.csv").read_text() == "i\n1\n"
    assert path.read_text() == "i\n2\n"


def test_names_that_come_again_get_names_of_their_own_in_the_archive(
    folder: Path, tmp_path: Path
) -> None:
    path = folder / "day/a.csv"
    for number in range(3):
        write(path, f"i\n{number}\n")
        os.utime(path, (1_000 + number, 1_000 + number))
        file = read_file(folder, target=tmp_path / "done/a.csv")
        dispose(files_of(folder), file)

    archived = sorted((tmp_path / "done").iterdir())
    assert archived[0].name == "a.csv"
    assert {one.read_text() for one in archived} == {"i\n0\n", "i\n1\n", "i\n2\n"}


@pytest.mark.parametrize("is_linked", [True, False], ids=["one file system", "two"])
def test_a_name_of_the_archive_with_other_content_is_no_copy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_linked: bool
) -> None:
    """Neither size nor time shows that they differ."""
    if not is_linked:
        _without_links_to(tmp_path / "done", monkeypatch)
    path = folder / "day/a.csv"
    for number in range(2):
        write(path, f"i\n{number}\n")
        os.utime(path, (1_000, 1_000))
        dispose(files_of(folder), read_file(folder, target=tmp_path / "done/a.csv"))

    assert names_below(folder) == ["day"]
    contents = [one.read_text() for one in sorted((tmp_path / "done").iterdir())]
    assert sorted(contents) == ["i\n0\n", "i\n1\n"]


@pytest.mark.parametrize("is_linked", [True, False], ids=["one file system", "two"])
def test_an_archived_file_keeps_its_mode_and_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_linked: bool
) -> None:
    """A file that only its owner may read is for no other user in the archive either."""
    if not is_linked:
        _without_links_to(tmp_path / "done", monkeypatch)
    modes: set[int] = set()

    def see(step: str) -> None:
        if step == "copied":
            modes.update(
                path.stat().st_mode for path in (tmp_path / "done").rglob("*") if path.is_file()
            )

    path = write(folder / "day/a.csv")
    path.chmod(0o600)
    os.utime(path, ns=(1_000, 2_000))
    status = path.stat()
    dispose(files_of(folder), read_file(folder, target=tmp_path / "done/a.csv"), see)

    archived = (tmp_path / "done/a.csv").stat()
    assert (archived.st_mode, archived.st_mtime_ns) == (status.st_mode, status.st_mtime_ns)
    assert modes <= {status.st_mode}, "nor is its draft"


def test_a_link_stays_and_so_does_its_target(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "far/a.csv")
    (folder / "day/a.csv").symlink_to(tmp_path / "far/a.csv")

    with pytest.raises(NotDisposedError, match="a link leads to it"):
        dispose(files_of(folder), read_file(folder))
    assert (folder / "day/a.csv").read_text() == "i\n1\n"


@pytest.mark.parametrize("is_linked", [True, False], ids=["one file system", "two"])
def test_an_archived_file_whose_name_comes_again_too_early_is_done(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_linked: bool
) -> None:
    """The driver ends before the outcome is in the log: the next one settles the intent once more."""
    path = write(folder / "day/a.csv")
    file = read_file(folder, target=tmp_path / "done/a.csv")
    if not is_linked:
        _without_links_to(tmp_path / "done", monkeypatch)
    dispose(files_of(folder), file)
    write(path, "i\n2\n2\n")

    dispose(files_of(folder), file)
    assert path.read_text() == "i\n2\n2\n"
    assert (tmp_path / "done/a.csv").read_text() == "i\n1\n"


@pytest.mark.parametrize("is_further", [False, True], ids=["path", "also"])
def test_a_file_that_the_source_names_itself_stays(folder: Path, *, is_further: bool) -> None:
    """Without it, the next listing would find no file of that name, and fail the job."""
    path = write(folder / "day/a.csv")
    file = read_file(folder)
    source = FileSource(folder / "other", also=[path]) if is_further else FileSource(path)

    with pytest.raises(NotDisposedError, match="the path of the source names it") as raised:
        dispose(source._discovery.files, file)
    assert raised.value.is_final
    assert path.exists()


def test_a_file_below_a_link_to_a_folder_stays(folder: Path, tmp_path: Path) -> None:
    """Deleted there, it would be gone for the other path too, under which it may still be read."""
    write(tmp_path / "far/a.csv")
    (folder / "linked").symlink_to(tmp_path / "far")

    with pytest.raises(NotDisposedError, match="a link leads to it"):
        dispose(files_of(folder), read_file(folder, "linked/a.csv"))
    assert (tmp_path / "far/a.csv").read_text() == "i\n1\n"


@pytest.mark.parametrize("gone", ["in", "in/day"])
@pytest.mark.parametrize("target", ["done/day/a.csv", None])
def test_a_file_whose_folder_is_gone_is_not_taken_for_deleted(
    folder: Path, tmp_path: Path, gone: str, target: str | None
) -> None:
    """Known no more, it would be read again with its folder."""
    path = write(folder / "day/a.csv")
    file = read_file(folder, target=None if target is None else tmp_path / target)
    (tmp_path / gone).rename(tmp_path / "away")
    with pytest.raises(NotDisposedError, match="is not there") as raised:
        dispose(files_of(folder), file)
    assert not raised.value.is_final
    assert not path.exists()


def test_a_file_below_an_empty_point_of_mounting_is_not_taken_for_deleted(folder: Path) -> None:
    path = write(folder / "day/a.csv")
    file = read_file(folder)
    path.unlink()
    with pytest.raises(NotDisposedError, match="is on another file system") as raised:
        dispose(files_of(folder), replace(file, mark=file.mark.replace(" file ", " file 9")))
    assert not raised.value.is_final


def test_an_archived_file_whose_emptied_folder_was_removed_is_done(
    folder: Path, tmp_path: Path
) -> None:
    path = write(folder / "day/a.csv")
    file = read_file(folder, target=tmp_path / "done/a.csv")
    dispose(files_of(folder), file)
    path.parent.rmdir()
    dispose(files_of(folder), file)  # its outcome was lost in a crash
    assert names_below(tmp_path / "done") == ["a.csv"]


def test_a_file_is_archived_beside_a_link_of_its_name_that_leads_nowhere(
    folder: Path, tmp_path: Path
) -> None:
    write(folder / "day/a.csv")
    (tmp_path / "done").mkdir()
    (tmp_path / "done/a.csv").symlink_to(tmp_path / "nowhere")

    dispose(files_of(folder), read_file(folder, target=tmp_path / "done/a.csv"))
    assert names_below(folder) == ["day"]
    (archived,) = [one for one in (tmp_path / "done").iterdir() if not one.is_symlink()]
    assert archived.read_text() == "i\n1\n"


def test_a_file_that_cannot_be_archived_is_not_taken_for_archived(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the archive vanishes before the link: no other driver has done the work."""
    write(folder / "day/a.csv")
    file = read_file(folder, target=tmp_path / "done/a.csv")

    def link(_source: str, target: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(FileNotFoundError):
        dispose(files_of(folder), file)
    monkeypatch.undo()
    dispose(files_of(folder), file)
    assert (tmp_path / "done/a.csv").read_text() == "i\n1\n"


# --- intents --------------------------------------------------------------------------------------
def intent(*files: ReadFile) -> ReleaseSplits:
    return ReleaseSplits(
        effect="delete",
        discovered_below=10,
        inputs=[
            ReleasedInput(split_ids=[file.path, f"{file.path}#2"], content=encode_versioned(file))
            for file in files
        ],
    )


def test_what_fails_is_in_the_outcome_and_fails_nothing_else(folder: Path) -> None:
    for name in "abc":
        write(folder / f"day/{name}.csv")
    files = [read_file(folder, f"day/{name}.csv") for name in "abc"]
    results = ReleaseResults()
    write(folder / "day/b.csv", "i\n2\n3\n")

    outcome = FileRelease(files_of(folder), results).settle(intent(*files))
    assert outcome.split_ids == [
        name for file in (files[0], files[2]) for name in (file.path, f"{file.path}#2")
    ]
    assert [one.split_id for one in outcome.unreleased] == [files[1].path, f"{files[1].path}#2"]
    assert "it has changed since it was read" in outcome.unreleased[0].problem
    assert outcome.discovered_below == 10
    ((path, (_, is_final)),) = results.take().items()
    assert (path, is_final) == (files[1].path, True)
    assert results.take() == {}


def test_a_file_system_that_refuses_or_hangs_is_an_outcome_in_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        write(folder / f"day/{name}.csv")
    files = [read_file(folder, f"day/{name}.csv") for name in "abc"]
    never = threading.Event()

    def dispose_of(_files: InputFiles, file: ReadFile) -> None:
        if file.path.endswith("a.csv"):
            raise PermissionError(13, "no")
        if file.path.endswith("b.csv"):
            never.wait()

    monkeypatch.setattr(release, "RELEASE_CALL_S", 0.2)
    results = ReleaseResults()
    outcome = FileRelease(files_of(folder), results, dispose_of).settle(intent(*files))
    never.set()

    assert outcome.split_ids[0].endswith("c.csv")
    problems = {one.split_id[-5:]: one.problem for one in outcome.unreleased}
    assert "PermissionError" in problems["a.csv"]
    assert problems["b.csv"] == "it was not archived or deleted within 0.2 s"
    assert not any(is_final for _, is_final in results.take().values())


# --- options --------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", ["", "remove", "archive", "archive:"])
def test_another_word_is_refused(value: str) -> None:
    with pytest.raises(OptionError, match="after_commit"):
        Watch(after_commit=value)


@pytest.mark.parametrize(
    ("source", "archive", "is_allowed"),
    [
        ("in", "done", True),
        ("in", "in/_done", True),
        ("in", "in/.a/done", True),
        ("in/*.csv", "in/done", True),
        ("in", "in/done", False),
        ("in", "in", False),
        ("in/day", "in", False),
        ("in/*", "in/done", False),
        ("in", "out/done", False),
        ("in", "out", False),
        ("in", "s3://bucket/done", False),
    ],
)
def test_an_archive_is_outside_of_the_listing_and_of_the_output(
    tmp_path: Path,
    *,
    source: str,
    archive: str,
    is_allowed: bool,
) -> None:
    place = archive if "://" in archive else tmp_path / archive

    def make() -> None:
        files = FileSource(tmp_path / source, watch=Watch(after_commit=f"archive:{place}"))
        chain = Chain(source=files.spec(), operators=[ParquetSink(tmp_path / "out").spec()])
        check_apart(chain)

    if is_allowed:
        make()
    else:
        with pytest.raises(OptionError, match="archive"):
            make()


def test_files_of_other_stores_are_kept() -> None:
    with pytest.raises(OptionError, match="neither local nor in S3"):
        FileSource("https://host/in/a.csv", watch=Watch(after_commit="delete"))


def test_a_file_without_a_mark_is_kept(folder: Path) -> None:
    write(folder / "day/a.csv")
    file = replace(read_file(folder), mark="")

    with pytest.raises(NotDisposedError, match="no mark"):
        dispose(files_of(folder), file)


def test_files_that_wait_behind_hanging_ones_never_make_the_outcome_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()

    class Pending(queue.SimpleQueue[int]):
        def get(self, block: bool = True, timeout: float | None = None) -> int:  # noqa: FBT001, FBT002
            assert not block, "a thread may have taken the last one meanwhile"
            return super().get(block, timeout)

    monkeypatch.setattr(queue, "SimpleQueue", Pending)
    monkeypatch.setattr(release, "RELEASE_CALL_S", 0.05)
    names = [f"day/{number}.csv" for number in range(20)]
    for name in names:
        write(folder / name)
    files = [read_file(folder, name) for name in names]

    def hang(_files: InputFiles, _file: ReadFile) -> None:
        never.wait()

    outcome = FileRelease(files_of(folder), ReleaseResults(), hang).settle(intent(*files))
    never.set()
    assert (len(outcome.unreleased), outcome.split_ids) == (40, [])


def test_an_outcome_of_many_splits_with_long_problems_is_within_a_record(folder: Path) -> None:
    def refuse(_files: InputFiles, _file: ReadFile) -> None:
        raise PermissionError(13, "é" * 500)

    write(folder / "day/a.csv")
    file = read_file(folder)
    released = ReleasedInput(
        split_ids=[f"/in/a.csv#bytes={number:08}" for number in range(2_000)],
        content=encode_versioned(file),
    )
    intent = ReleaseSplits(effect="delete", discovered_below=9, inputs=[released])
    outcome = FileRelease(files_of(folder), ReleaseResults(), refuse).settle(intent)
    assert [one.split_id for one in outcome.unreleased] == released.split_ids
    assert all(one.problem.startswith("Permission") for one in outcome.unreleased)
    assert len(payload_type_of(SplitsReleased).encode(outcome)) < PAYLOAD_BYTES_MAX


def test_a_file_of_more_splits_than_a_record_has_room_for_stays(folder: Path) -> None:
    """It fails no job, and the other files go."""
    found, state = CommittedFiles(files_of(folder), None, ReleaseResults()), SplitsState()
    for name, parts in (("a", 1), ("b", 5_000), ("c", 1)):
        path = str(write(folder / f"day/{name}.csv"))
        (listed,) = [file for file in files_of(folder).walk() if file.path == path]
        candidate = release._Candidate(
            FileSplit(
                split_id=path,
                path=path,
                size_bytes=listed.size_bytes,
                mark=listed.mark,
                real_path=listed.real_path,
                parts=parts,
                listed_by="",
                start=0,
                end=4,
                arrow_schema=b"",
            ),
        )
        names = [f"{path}#bytes={number}" for number in range(parts)]
        splits = state.splits.extended([split(name) for name in names], lambda _: WithEnumerator())
        state = replace(state, splits=splits)
        candidate.ordinals.update({name: splits.ordinal(name) for name in names})
        found._ready.append(candidate)
    intents = found.intents(state.splits, ())
    assert [len(one.split_ids) for each in intents for one in each.inputs] == [1, 1]
    assert found.intents(state.splits, ()) == []
