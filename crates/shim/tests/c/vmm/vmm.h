/* What the parts of the little VMM share: its memory, and ways to look whether it is as it was left. */
#ifndef VMM_H
#define VMM_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 512UL
#define FILLED 256UL /* pages with a pattern; the others are never touched */
#define KINDS 8UL
#define BYTES (PAGES * PAGE)

extern unsigned char *ram;
extern int ram_fd; /* of a file that the RAM is mapped from, or -1 */

/* Says what is wrong, and ends the program. */
void bad(const char *format, ...);

#define CHECK(condition) \
	do { \
		int error_seen = errno; \
		if (!(condition)) \
			bad("%s line %d: %s (errno %d)", __FILE__, __LINE__, #condition, error_seen); \
	} while (0)

/* The word that page `page` is full of. */
uint64_t word_of(unsigned long page);

int page_holds(const unsigned char *page, uint64_t word);

/* Pages from..to hold their words, seen at `memory`. */
void expect(const unsigned char *memory, unsigned long from, unsigned long to);

void expect_zero(unsigned long from, unsigned long to);

/* Pages from..to can be written and keep what is written. */
void write_through(unsigned long from, unsigned long to);

/* How many mappings lie in the RAM, and how many of them show a store. */
unsigned mappings(unsigned *of_store);

void expect_no_store(void);

/* How many bytes of the RAM lie in mappings that have a flag of VmFlags in /proc/self/smaps. */
unsigned long bytes_flagged(const unsigned char *memory, unsigned long bytes, const char *flag);

/* Does `work` in a child of fork, which is to end well. */
void in_child(void (*work)(void));

/* Makes this process one whose memory cannot be managed, if the action is about that. */
void hinder(const char *action);

/* What is done to shared memory: false if there is nothing of this name. */
int act_shared(const char *name);

/* What the program does that act_shared("exec") executes. */
void after_exec(const char *number);

void act_nothing(void);
void act_write(void);
void act_dontneed(void);
void act_free(void);
void act_remove(void);
void act_hints(void);
void act_unmergeable(void);
void act_unmergeable_then_wait(void);
void act_again(void);
void act_munmap(void);
void act_tear(void);
void act_many(void);
void act_mmap_over(void);
void act_mremap(void);
void act_mremap_of_copies(void);
void act_mprotect(void);
void act_mprotect_exec(void);
void act_pkey(void);
void act_wiped_on_fork(void);
void act_mseal(void);
void act_mbind(void);
void act_process_madvise(void);
void act_mremap_dontunmap(void);
void act_mremap_refused(void);
void act_mremap_within(void);
void act_mlock(void);
void act_mlockall(void);
void act_guard(void);
void act_userfault(void);
void act_userfault_move(void);
void act_fork(void);
void act_child_advice(void);
void act_child_executes(void);
void act_clone_advice(void);
void act_fork_often(void);
void act_outlive(void);
void act_outlive_closed(void);
void act_unknown_fork(void);
void act_unknown_python(void);
void act_unknown_clone(void);
void act_unknown__fork(void);
void act_unknown_raw(void);
void act_dontfork(void);
void act_dontdump(void);
void act_left_to_ksm(void);
void act_device_reads(void);
void act_device_writes(void);
void act_storm(void);
void act_written_from_outside(void);
void act_spawn(void);
void act_close_range(void);
void act_close_range_unshare(void);
void act_closefrom(void);
void act_close_each(void);
void act_dup_over(void);
void act_few_descriptors(void);
void act_own_pipes(void);
void act_nothing_of_ours(void);
void act_daemon(void);
void act_exec_keeping(void);
void act_errors_end(void);
void act_errors_broken(void);
void act_copies_fork(void);
void act_copies_Fork(void);
void act_copies_clone(void);
void act_copies_syscall_clone(void);
void act_copies_syscall_clone3(void);
void act_copies_syscall_fork(void);
void act_sharing_child(void);
void act_by_number(void);

/* Makes standard error a pipe of this program's own. */
void hinder_errors(void);

#endif
