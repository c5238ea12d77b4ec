"""The last step of a child before it becomes a server. Run as a script, with no site packages:

    python -I -S launch.py <uid> <gid> <parent pid> <signal> <program> <arguments…>

It starts with the rights of its parent, already in the server's folder, and only then drops them: the folder stays open
to it even if the folders above are closed to its new account. A script of its own, because code between fork and exec
of a threaded process (`preexec_fn`) may deadlock. It costs about 10 ms.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    uid, gid, parent, death_signal = (int(word) for word in sys.argv[1:5])
    command = sys.argv[5:]
    os.umask(0o077)
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        # After setuid, which would clear it. A parent that died before this line sends nothing: check once.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            sys.exit("the parent is gone")
    os.execv(command[0], command)  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    main()
