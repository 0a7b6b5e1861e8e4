"""The package: what it exports, how soon it is there, and which library it opens."""

import ast
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import penstock
from penstock import _penstock

PACKAGE = pathlib.Path(penstock.__file__).parent
LIBRARY = "libpenstock.so.0"


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=30)


class Exports(unittest.TestCase):
    def test_the_version_is_the_library_s(self) -> None:
        self.assertRegex(penstock.version(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(penstock.__version__, penstock.version())
        # From the only place that has it.
        manifest = next(folder / "Cargo.toml" for folder in pathlib.Path.cwd().parents if (folder / "Makefile").exists())
        self.assertIn(f'version = "{penstock.version()}"', manifest.read_text())

    def test_the_abi_is_the_header_s(self) -> None:
        header = pathlib.Path("../../capi/penstock.h").read_text()
        self.assertIn(f"#define PENSTOCK_ABI {penstock.abi()}\n", header)

    def test_a_subinterpreter_is_told_that_it_cannot_have_it(self) -> None:
        program = (
            "import _xxsubinterpreters as interpreters\n"
            "other = interpreters.create()\n"
            "try: interpreters.run_string(other, 'import penstock')\n"
            "except interpreters.RunFailedError as error: print(error)\n"
        )
        try:
            import _xxsubinterpreters  # type: ignore[import-not-found]  # noqa: F401
        except ImportError:
            self.skipTest("needs _xxsubinterpreters, as of CPython 3.11 and 3.12")
        ended = python(program)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertIn("in the main interpreter only", ended.stdout)

    def test_statuses_have_words(self) -> None:
        self.assertIn("deadline", penstock.message(102))
        self.assertEqual(penstock.message(99_999), penstock.message(-1))

    def test_the_stub_has_what_the_extension_has(self) -> None:
        stub = ast.parse((PACKAGE / "_penstock.pyi").read_text())
        declared = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        exported = {name for name in vars(_penstock) if not name.startswith("__")}
        self.assertEqual(set(declared), exported)
        self.assertEqual(set(penstock.__all__), {name for name in exported if not name.startswith("_")})
        self.assertLessEqual(exported, set(vars(penstock)))
        for name, node in declared.items():
            if isinstance(node, ast.ClassDef) and issubclass(getattr(penstock, name), BaseException):
                bases = [base.__name__ for base in getattr(penstock, name).__bases__]
                self.assertEqual([ast.unparse(base) for base in node.bases], bases, name)

    def test_everything_says_what_it_is(self) -> None:
        for name in penstock.__all__:
            thing = getattr(penstock, name)
            self.assertTrue(thing.__doc__, name)
        for name, member in vars(penstock.Engine).items():
            if not name.startswith("_"):
                self.assertTrue(member.__doc__, name)

    def test_a_command_tells_what_is_installed(self) -> None:
        ran = subprocess.run([sys.executable, "-m", "penstock"], capture_output=True, text=True, timeout=30)
        told = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(told["version"], penstock.version())
        self.assertEqual(told["library"], str(PACKAGE / LIBRARY))
        transports = ("local", "shm", "tcp", "datagram", "verbs")
        self.assertEqual([name for name in told if name in transports], list(transports))
        self.assertEqual([told[name] for name in transports[:-1]], ["yes"] * 4)


class Importing(unittest.TestCase):
    def test_it_takes_less_than_100_ms(self) -> None:
        def seconds(program: str) -> float:
            began = time.perf_counter()
            self.assertEqual(python(program).returncode, 0)
            return time.perf_counter() - began

        seconds("import penstock")
        # The quickest of several: whatever else the machine does only adds.
        bare = min(seconds("pass") for _ in range(8))
        whole = min(seconds("import penstock") for _ in range(8))
        self.assertLess(whole - bare, 0.1)

    def test_another_copy_in_the_loader_s_path_is_not_loaded(self) -> None:
        program = """
import penstock
print(penstock.library_path())
for line in open("/proc/self/maps"):
    if "libpenstock" in line: print(line.split(maxsplit=5)[5].strip())
"""
        with tempfile.TemporaryDirectory() as other:
            shutil.copy(PACKAGE / LIBRARY, other)
            ran = python(program, LD_LIBRARY_PATH=other)
        self.assertEqual(ran.stderr, "")
        self.assertEqual(set(ran.stdout.splitlines()), {str(PACKAGE / LIBRARY)})

    def test_behind_a_link_its_own_library_is_found(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "penstock")
            package.mkdir()
            for name in ("__init__.py", "_penstock.abi3.so"):
                (package / name).symlink_to(PACKAGE / name)
            ran = python("import penstock; print(penstock.library_path())", PYTHONPATH=folder)
        self.assertEqual((ran.stdout.strip(), ran.stderr), (str(PACKAGE / LIBRARY), ""))


class Broken(unittest.TestCase):
    """A package of which the library is not its own cannot be imported, and says why."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.library = pathlib.Path(folder.name, "penstock", LIBRARY)
        self.library.parent.mkdir()
        for name in ("__init__.py", "_penstock.abi3.so"):
            shutil.copy(PACKAGE / name, self.library.parent)

    def refused(self, *words: str) -> None:
        program = f"import sys; sys.path.insert(0, {self.folder!r}); import penstock"
        ran = python(program)
        last = ran.stderr.strip().splitlines()[-1]
        self.assertEqual(ran.returncode, 1, ran)
        for part in ("ImportError", str(self.library), "pip install --force-reinstall", *words):
            self.assertIn(part, last)

    def compiled(self, program: str) -> None:
        source = pathlib.Path(self.folder, "library.c")
        source.write_text(program)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.library, source], check=True)

    def test_no_library(self) -> None:
        self.refused("No such file")

    def test_no_shared_object(self) -> None:
        self.library.write_text("not a library")
        self.refused("cannot load")

    def test_another_program_s_library(self) -> None:
        self.compiled("int something(void) { return 1; }")
        self.refused("not the library of this package", "penstock_abi")

    def test_another_abi(self) -> None:
        self.compiled("unsigned penstock_abi(void) { return 4711; }")
        self.refused("has ABI 4711", f"needs {penstock.abi()}")

    def test_a_call_is_missing(self) -> None:
        self.compiled(f"unsigned penstock_abi(void) {{ return {penstock.abi()}; }}")
        self.refused("not the library of this package", "it has no `penstock_version`")


if __name__ == "__main__":
    unittest.main()
