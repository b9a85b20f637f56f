"""The harness of the C tests notices what it is there to notice: failures, crashes, hangs, and that no test was run."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
#define TEST_SECONDS 1
#include "test.h"
#include <time.h>
static dt_status fails(void) { return dt_fail(DT_E_SHAPE, "three is not two"); }
TEST(passes) { CHECK_INT(2 + 2, 4); CHECK_STR("a", "a"); CHECK_NEAR(NAN, NAN, 0); CHECK_HAS("abc", "b"); CHECK_STATUS(fails(), DT_E_SHAPE); }
TEST(wrong_int) { CHECK_INT(1, 2); }
TEST(wrong_text) { CHECK_STR("a", "b"); }
TEST(wrong_number) { CHECK_NEAR(1.0, NAN, 10); }
TEST(wrong_status) { CHECK_OK(fails()); }
TEST(goes_on) { CHECK(false); printf("went on\\n"); }
TEST(stops) { REQUIRE(false); printf("came here\\n"); }
TEST(crashes) { raise(SIGSEGV); }
TEST(hangs) { for (;;) pause(); }
TEST(passes_after_all_that) { CHECK(true); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harness")
    (folder / "t.c").write_text(PROGRAM)
    includes = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'tests/unit'}"]
    sources = [folder / "t.c", ROOT / "src/base/status.c"]
    command = [*os.environ.get("CC", "cc").split(), "-std=gnu17", "-D_GNU_SOURCE", *includes, *sources, "-lm", "-o", folder / "t"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "t"


def run(program, *names):
    done = subprocess.run([program, *names], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


def test_every_kind_of_fault_is_seen_and_no_other_test_suffers(program):
    code, out, err = run(program)
    assert code == 1
    verdicts = {line.split()[1]: line.split()[0] for line in out.splitlines() if line[:4] in ("ok  ", "FAIL")}
    assert {name for name, verdict in verdicts.items() if verdict == "ok"} == {"passes", "passes_after_all_that"}
    assert "10 tests, 8 failed" in out
    assert "went on" in out and "came here" not in out
    assert "1 = 1, expected 2 = 2" in err and "three is not two" in err
    assert "crashes: ended by signal 11" in err and "hangs: ended by signal 14" in err


def test_names_choose_tests_and_an_unknown_name_is_a_failure(program):
    assert run(program, "passes")[0] == 0
    code, out, err = run(program, "nonsense")
    assert code == 1 and "no test has such a name" in err
