"""A macOS to try ddppo on, made of Linux: with this folder on PYTHONPATH every Python process of a run is in it.

What macOS lacks is gone for all modules. That this is "darwin" only those of ddppo are told: the standard library and
torch, which are made for Linux here, would load what is not there. LIKE_A_SYSTEM=win32 or another name tells them of
that one instead.
"""

import builtins
import ctypes
import errno
import io
import os
import socket
import sys
from types import ModuleType

SYSTEM = os.environ.get("LIKE_A_SYSTEM", "darwin")

# -- what ddppo is told of the system ---------------------------------------------------------------------------------


class Told(ModuleType):
    """A module in which some names are others; what is assigned is assigned in the module itself."""

    def __init__(self, module, **others):
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_others", others)

    def __getattribute__(self, name):
        others = object.__getattribute__(self, "_others")
        return others[name] if name in others else getattr(object.__getattribute__(self, "_module"), name)

    def __setattr__(self, name, value):
        setattr(object.__getattribute__(self, "_module"), name, value)


def told(name):
    if name == "sys":
        return Told(sys, platform=SYSTEM)
    import platform

    machine = {
        "system": "Darwin",
        "machine": "arm64",
        "processor": "arm",
        "platform": "macOS-15.5-arm64-arm-64bit",
    }
    answers = {each: (lambda *args, value=value, **more: value) for each, value in machine.items()}
    return Told(platform, libc_ver=lambda *args, **more: ("", ""), **answers)


_import = builtins.__import__


def import_as_told(name, globals=None, locals=None, fromlist=(), level=0):
    if name in ("sys", "platform") and not fromlist and globals is not None:
        package = globals.get("__package__") or globals.get("__name__") or ""
        if package.partition(".")[0] in ("ddppo", "hydra_plugins"):
            return told(name)
    return _import(name, globals, locals, fromlist, level)


builtins.__import__ = import_as_told

# -- what macOS lacks -------------------------------------------------------------------------------------------------

NOT_IN_OS = """memfd_create sched_getaffinity sched_setaffinity posix_fallocate posix_fadvise pidfd_open eventfd setns
    waitid fdatasync pipe2 getrandom copy_file_range splice setresuid setresgid getresuid getxattr O_TMPFILE O_DIRECT
    O_PATH MFD_CLOEXEC EFD_CLOEXEC P_PIDFD unshare"""
NOT_IN_SOCKET = """SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC MSG_NOSIGNAL MSG_MORE MSG_ERRQUEUE SO_PEERCRED AF_NETLINK
    AF_PACKET AF_VSOCK TCP_USER_TIMEOUT SO_BINDTODEVICE"""
NOT_IN_C = ("prctl", "memfd_create", "syscall", "epoll_create1", "eventfd", "timerfd_create", "pidfd_open")
NO_FOLDERS = ("/proc", "/sys", "/dev/shm")


def is_absent(path):
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    name = os.fsdecode(path)
    return any(name == folder or name.startswith(f"{folder}/") for folder in NO_FOLDERS)


def without_linux_folders(function):
    def of_a_mac(path=".", *args, **more):
        if is_absent(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return function(path, *args, **more)

    return of_a_mac


def without_linux_symbols(load):
    class CDLL(load):
        def __getattr__(self, name):
            if name in NOT_IN_C and self._name is None:
                raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
            return super().__getattr__(name)

    return CDLL


def short_names_only(shm_open):
    def of_a_mac(path, flags, mode=0o777):
        if len(os.fsencode(path)) > 31:  # PSHMNAMLEN
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        file = shm_open(path, flags, mode)
        _sized.discard(os.fstat(file).st_ino)
        _memory.add(os.fstat(file).st_ino)
        return file

    return of_a_mac


_memory, _sized = set(), set()  # inodes of shared memory, and those that have their size


def once(ftruncate):
    def of_a_mac(file, length):
        inode = os.fstat(file).st_ino
        if inode in _sized:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        ftruncate(file, length)
        if inode in _memory:
            _sized.add(inode)

    return of_a_mac


def no_abstract_names(function):
    def of_a_mac(self, address):
        if self.family == socket.AF_UNIX:
            name = os.fsencode(address)
            if not name or name.startswith(b"\0"):
                raise FileNotFoundError(errno.ENOENT, "abstract sockets are Linux's")
            if len(name) > 104:
                raise OSError("AF_UNIX path too long")
        return function(self, address)

    return of_a_mac


def loopback_is_lo0():
    """Call it so, also to those who ask for it by its name: what C reads from the environment is the true one."""
    if_nameindex, putenv = socket.if_nameindex, os.putenv
    socket.if_nameindex = lambda: [
        (number, "lo0" if name == "lo" else name) for number, name in if_nameindex()
    ]
    os.putenv = lambda key, value: putenv(
        key, b"lo" if value == b"lo0" else b"none" if value == b"lo" else value
    )
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name in os.environ:
            os.environ[name] = os.environ[name]


def be_a_mac():
    import _posixshmem
    import multiprocessing.context
    import multiprocessing.heap
    import multiprocessing.reduction
    import select
    import selectors

    for module, names in (
        (os, NOT_IN_OS),
        (socket, NOT_IN_SOCKET),
        (select, "epoll"),
        (selectors, "EpollSelector"),
    ):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in ("stat", "lstat", "statvfs", "listdir", "scandir", "readlink", "access", "open"):
        before, after = getattr(os, name), without_linux_folders(getattr(os, name))
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if before in able:
                able.add(after)
        setattr(os, name, after)
    builtins.open = io.open = without_linux_folders(io.open)
    ctypes.CDLL = without_linux_symbols(ctypes.CDLL)
    _posixshmem.shm_open = short_names_only(_posixshmem.shm_open)
    os.ftruncate = once(os.ftruncate)
    for name in ("bind", "connect"):
        setattr(socket.socket, name, no_abstract_names(getattr(socket.socket, name)))
    loopback_is_lo0()
    selectors.DefaultSelector = selectors.PollSelector  # macOS: kqueue
    multiprocessing.heap.Arena._dir_candidates = []
    contexts = multiprocessing.context._concrete_contexts
    multiprocessing.context._default_context._default_context = contexts["spawn"]
    multiprocessing.reduction.ACKNOWLEDGE = True


if SYSTEM == "darwin":
    be_a_mac()
elif SYSTEM == "win32":
    sys.modules |= dict.fromkeys(
        ("fcntl", "pwd", "grp", "resource", "termios", "_posixshmem", "_posixsubprocess")
    )
    del os.fork, os.getuid, os.sysconf
