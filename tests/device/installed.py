"""Imported by the server that tests' processes are forked from: installs the stand-in accelerator in all of them."""

from tests.device.standin import install

install()
