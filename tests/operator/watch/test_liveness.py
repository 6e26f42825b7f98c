"""A watch is deaf when a list shows what it has not told, and not when nothing happens."""

from __future__ import annotations

from kvreg_operator.watch.hearing import Hearing, WatchedObject

POD = WatchedObject("Pod", "serving", "uid-0")
OTHER = WatchedObject("Pod", "serving", "uid-1")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def new_hearing() -> tuple[Hearing, Clock]:
    clock = Clock()
    return Hearing(clock, deaf_after_s=60, silent_after_s=120), clock


def list_pods(hearing: Hearing, *, namespace: str = "serving", **versions: str) -> bool:
    """List pods by the end of their uid."""
    hearing.listed_anything()
    by_uid = {name.replace("_", "-"): version for name, version in versions.items()}
    return hearing.listed("Pod", namespace, by_uid)


def test_quiet_cluster_is_heard_for_ever() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    for _ in range(100):
        assert list_pods(hearing, uid_0="5")
        clock.pass_s(30)
    assert hearing.find_deafness() is None


def test_version_that_is_not_told_in_time_is_deafness() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    assert not list_pods(hearing, uid_0="6")
    clock.pass_s(61)
    deafness = hearing.find_deafness()
    assert deafness is not None
    assert "version 6" in deafness
    assert "Pod in serving" in deafness


def test_watch_has_time_to_tell() -> None:
    hearing, clock = new_hearing()
    list_pods(hearing, uid_0="6")
    clock.pass_s(59)
    assert hearing.find_deafness() is None


def test_version_that_is_told_late_pays_the_debt() -> None:
    hearing, clock = new_hearing()
    list_pods(hearing, uid_0="6")
    clock.pass_s(50)
    hearing.told(POD, "6")
    clock.pass_s(50)
    assert hearing.find_deafness() is None


def test_newer_version_pays_for_an_older_one() -> None:
    hearing, clock = new_hearing()
    list_pods(hearing, uid_0="9")
    hearing.told(POD, "10")
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_older_version_pays_nothing() -> None:
    hearing, clock = new_hearing()
    list_pods(hearing, uid_0="10")
    hearing.told(POD, "9")
    clock.pass_s(61)
    assert hearing.find_deafness() is not None


def test_object_that_changes_all_the_time_is_heard_while_versions_arrive() -> None:
    hearing, clock = new_hearing()
    for version in range(100, 1000, 10):
        # What is told is always a little behind what the next list shows.
        list_pods(hearing, uid_0=str(version + 5))
        clock.pass_s(30)
        hearing.told(POD, str(version + 6))
        assert hearing.find_deafness() is None


def test_object_that_changes_all_the_time_does_not_hide_deafness() -> None:
    hearing, clock = new_hearing()
    for version in range(100, 200, 10):
        list_pods(hearing, uid_0=str(version))
        clock.pass_s(15)
    assert hearing.find_deafness() is not None


def test_versions_that_are_no_numbers_are_told_by_any_later_event() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "abc")
    assert list_pods(hearing, uid_0="abc")
    assert not list_pods(hearing, uid_0="def")
    hearing.told(POD, "ghi")
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_end_that_is_not_told_is_deafness() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    assert not list_pods(hearing)
    clock.pass_s(61)
    assert "the end" in (hearing.find_deafness() or "")


def test_end_that_is_told_is_none() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    list_pods(hearing)
    hearing.told_gone(POD)
    assert list_pods(hearing)
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_list_that_was_taken_before_an_end_was_told_is_no_deafness() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    hearing.told_gone(POD)
    list_pods(hearing, uid_0="5")
    clock.pass_s(30)
    list_pods(hearing)
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_list_that_was_taken_before_a_beginning_was_told_is_no_deafness() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    list_pods(hearing)
    clock.pass_s(30)
    list_pods(hearing, uid_0="5")
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_end_in_a_gap_of_the_watch_is_not_owed_once_it_has_begun_anew() -> None:
    hearing, clock = new_hearing()
    for it in (POD, OTHER):
        hearing.told(it, "5", by_listing=True)
    # The list shows the end before the watch lists again, which is in time.
    assert not list_pods(hearing, uid_1="5")
    clock.pass_s(30)
    hearing.told(OTHER, "5", by_listing=True)
    assert list_pods(hearing, uid_1="5")
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_end_after_the_watch_has_begun_anew_is_owed() -> None:
    hearing, clock = new_hearing()
    for _ in range(2):
        for it in (POD, OTHER):
            hearing.told(it, "5", by_listing=True)
    assert not list_pods(hearing, uid_1="5")
    clock.pass_s(61)
    assert "the end" in (hearing.find_deafness() or "")


def test_namespace_that_is_forgotten_owes_nothing() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    list_pods(hearing, uid_0="6")
    hearing.forget("serving")
    clock.pass_s(61)
    assert hearing.find_deafness() is None
    assert list_pods(hearing)


def test_one_namespace_says_nothing_of_another() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    assert list_pods(hearing, namespace="elsewhere")
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_one_kind_says_nothing_of_another() -> None:
    hearing, clock = new_hearing()
    hearing.told(POD, "5")
    assert hearing.listed("StatefulSet", "serving", {})
    clock.pass_s(61)
    assert hearing.find_deafness() is None


def test_one_object_does_not_speak_for_another() -> None:
    hearing, clock = new_hearing()
    list_pods(hearing, uid_0="5", uid_1="6")
    hearing.told(OTHER, "6")
    clock.pass_s(61)
    assert "uid-0" in (hearing.find_deafness() or "")


def test_lists_that_all_fail_are_deafness() -> None:
    hearing, clock = new_hearing()
    clock.pass_s(121)
    assert "no complete list" in (hearing.find_deafness() or "")
    hearing.listed_anything()
    assert hearing.find_deafness() is None
