"""The suite of the SDK for Node, in `node`, where there is a Node. Its packages come from npm, once."""

import os
import pathlib
import shutil
import subprocess
import unittest

from hosted import Hosted

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parents[1] / os.environ.get("CARGO_TARGET_DIR", "target") / "sdk-node"


@unittest.skipUnless(shutil.which("npm"), "there is no npm here")
class Node(unittest.TestCase):
    def test_the_faces_as_the_sdk_for_node_reads_them(self):
        TARGET.mkdir(parents=True, exist_ok=True)
        lock = (HERE / "node" / "package-lock.json").read_bytes()
        installed = TARGET / "node_modules" / "installed"
        for file in (HERE / "node").iterdir():
            shutil.copy(file, TARGET)
        if not installed.exists() or installed.read_bytes() != lock:
            subprocess.run(["npm", "ci", "--silent"], cwd=TARGET, check=True)
            installed.write_bytes(lock)
        with Hosted():
            suite = subprocess.run(["node", "--test"], cwd=TARGET, capture_output=True, text=True)
        self.assertEqual(suite.returncode, 0, suite.stdout + suite.stderr)
