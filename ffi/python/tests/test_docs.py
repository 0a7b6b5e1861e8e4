"""Every program of the guide runs; those that need a GPU are only compiled where there is none."""

import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

GUIDE = pathlib.Path("../../../docs/PYTHON.md")


def programs(mark: str) -> list[str]:
    """Those of the guide that are marked so."""
    return re.findall(rf"^```{mark}\n(.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)


def has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    return bool(importlib.import_module("torch").cuda.is_available())


class Guide(unittest.TestCase):
    def test_its_programs_run(self) -> None:
        self.assertGreaterEqual(len(programs("python")), 4)
        self.run_all(programs("python"))

    def test_its_programs_for_a_gpu_run(self) -> None:
        self.assertGreaterEqual(len(programs("python gpu")), 1)
        for program in programs("python gpu"):
            compile(program, str(GUIDE), "exec")
        if not has_gpu():
            self.skipTest("needs torch and a GPU")
        self.run_all(programs("python gpu"))

    def run_all(self, all_of_them: list[str]) -> None:
        for program in all_of_them:
            with self.subTest(program.split("\n", 3)[-1][:60]), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "program.py")
                path.write_text(program)
                environment = os.environ | {"XDG_RUNTIME_DIR": folder, "PENSTOCK_DIRECTORY": folder}
                environment.pop("PENSTOCK_CUDA_DRIVER", None)
                command = [sys.executable, "-W", "error", str(path)]
                ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
                self.assertEqual((ran.returncode, ran.stderr), (0, ""), ran.stdout)
