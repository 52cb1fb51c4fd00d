"""A child that closes all descriptors, as Python programs that become daemons do, keeps its data."""
import hashlib
import mmap
import os
import sys
import time

PAGE, PAGES = 4096, 1024
MANAGED = "CASE_MANAGED" in os.environ


def page(number, turn):
    return hashlib.sha256(b"%d %d" % (number % (PAGES // 2), turn)).digest() * (PAGE // 32)


def fill(memory, turn):
    for number in range(PAGES):
        memory[number * PAGE:(number + 1) * PAGE] = page(number, turn)


def wrong(memory, turn):
    return sum(memory[number * PAGE:(number + 1) * PAGE] != page(number, turn) for number in range(PAGES))


def rest():
    time.sleep(1 if MANAGED else 0)


memory = mmap.mmap(-1, PAGE * PAGES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_MERGEABLE)
fill(memory, 1)
rest()
rest()
child = os.fork()
if child == 0:
    os.closerange(3, 1024)
    until = time.time() + (4 if MANAGED else 0.1)
    bad = 0
    while time.time() < until and not bad:
        bad = wrong(memory, 1)
    os._exit(bad != 0)
for turn in range(2, 8):
    fill(memory, turn)
    rest()
print("the child says", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "pages of its parent wrong", wrong(memory, 7))
sys.exit(0)
