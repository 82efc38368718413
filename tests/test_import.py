"""Importing works everywhere; what is missing is named when a device is first needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import vkrnn

CALL = "import numpy, vkrnn; vkrnn.lstm(numpy.ones((5, 3, 16), 'f4'), numpy.ones((16, 4), 'f4'))"


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_import_without_a_driver() -> None:
    """Nothing is looked for before it is needed; the reference works without any device."""
    program = "import vkrnn, numpy; vkrnn.reference.lstm(numpy.ones((5, 3, 16)), numpy.ones((16, 4))); print('fine')"
    done = run(program, VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent")
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_call_without_a_driver() -> None:
    """The first call says what to install."""
    done = run(CALL, VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent", VKRNN_VALIDATION="")
    assert done.returncode == 1
    assert re.match(
        r"vkrnn\.DeviceError: no Vulkan (driver|1\.3 device) was found.*apt install libvulkan1 mesa-vulkan-drivers",
        done.stderr.splitlines()[-1],
    ), done.stderr


def test_the_loader_is_not_linked() -> None:
    """The extension opens libvulkan at run time: importing works where there is none."""
    program = "import vkrnn; print('libvulkan' in open('/proc/self/maps').read())"
    assert run(program).stdout == "False\n"


def test_public_names() -> None:
    """Everything public is there and documented."""
    assert vkrnn.__version__.count(".") == 2
    for name in vkrnn.__all__:
        assert getattr(vkrnn, name).__doc__, name
