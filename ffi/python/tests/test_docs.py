"""Every program of the guide runs."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

GUIDE = pathlib.Path("../../../docs/PYTHON.md")


class Guide(unittest.TestCase):
    def test_its_programs_run(self) -> None:
        programs = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
        self.assertGreaterEqual(len(programs), 4)
        for program in programs:
            with self.subTest(program.split("\n", 3)[-1][:60]), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "program.py")
                path.write_text(program)
                environment = os.environ | {"XDG_RUNTIME_DIR": folder, "PENSTOCK_DIRECTORY": folder}
                command = [sys.executable, "-W", "error", str(path)]
                ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
                self.assertEqual((ran.returncode, ran.stderr), (0, ""), ran.stdout)
