/*
 * Bindery: merging of identical pages of guest memory, for VMMs that link libbindery_shim.so.
 *
 * A VMM that is started by `bindery run`, or with the library in LD_PRELOAD, needs nothing of this:
 * it offers its memory with madvise(MADV_MERGEABLE), as it would to KSM. The same works in a VMM that
 * links the library, as the library stands in front of the C library's madvise, munmap, mmap, mremap,
 * mprotect, mlock and ioctl. The functions below are for VMMs that reach the
 * kernel by other ways (system calls of their own, io_uring), or that want to know why memory was not
 * taken.
 *
 * All functions may be called from any thread. They return 0, or -1 if the call failed; then
 * bindery_last_error() says what happened and what to do, and errno is as it was.
 *
 * Environment: BINDERY_SOCKET (the daemon's socket), BINDERY_NAME and BINDERY_DOMAIN (what the guest
 * is called and with whom it may share pages), BINDERY_LOG_FILE (a file to log to instead of
 * standard error).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BINDERY_H
#define BINDERY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Takes private anonymous memory under management. Shared memory is left as it is: other mappings and
 * descriptors could reach it. Content and address stay. The first call starts the library's threads, which
 * block all signals; it takes about a millisecond. Parts that are managed already stay so.
 * `address` must be page-aligned; `bytes` is rounded up to whole pages.
 */
int bindery_manage(void *address, size_t bytes);

/*
 * Gives back every region that the range touches: private memory, unwatched, its content as it is.
 * Takes about a microsecond for each merged page. Call it before memory is registered with a
 * userfaultfd or locked.
 */
int bindery_release(void *address, size_t bytes);

/*
 * Throws the content of a range away: it reads as zeros afterwards. What madvise(MADV_DONTNEED) does,
 * for whole pages, managed or not.
 */
int bindery_discard(void *address, size_t bytes);

/*
 * Forgets a range, right before it is unmapped or replaced by another mapping. Waits for work on it
 * to end: at most some milliseconds.
 */
int bindery_forget(void *address, size_t bytes);

/*
 * What the last failed call of this thread has to say: one line of text, valid until the next failed
 * call of this thread. Empty if none failed.
 */
const char *bindery_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
