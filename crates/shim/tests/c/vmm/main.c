/*
 * A little VMM: offers memory as QEMU does, waits until the test has merged it, does one thing to it,
 * and looks whether it can tell. Says "ready", reads a line, says "ok" or what is wrong.
 *
 *   vmm <backing: anonymous|memfd|shared|file> <action>
 */
#include "vmm.h"

static const struct {
	const char *name;
	void (*act)(void);
} actions[] = {
	{ "nothing", act_nothing },	  { "write", act_write },
	{ "dontneed", act_dontneed },	  { "free", act_free },
	{ "remove", act_remove },	  { "hints", act_hints },
	{ "unmergeable", act_unmergeable },
	{ "unmergeable-then-wait", act_unmergeable_then_wait },
	{ "again", act_again },
	{ "munmap", act_munmap },	  { "mmap-over", act_mmap_over },
	{ "tear", act_tear },		  { "many", act_many },
	{ "mremap", act_mremap },	  { "mprotect", act_mprotect },
	{ "mremap-of-copies", act_mremap_of_copies },
	{ "mprotect-exec", act_mprotect_exec },
	{ "wiped-on-fork", act_wiped_on_fork },
	{ "pkey", act_pkey },		  { "mseal", act_mseal },
	{ "mbind", act_mbind },
	{ "process-madvise", act_process_madvise },
	{ "mremap-dontunmap", act_mremap_dontunmap },
	{ "mremap-refused", act_mremap_refused },
	{ "mremap-within", act_mremap_within },
	{ "mlock", act_mlock },		  { "mlockall", act_mlockall },
	{ "guard", act_guard },		  { "userfault", act_userfault },
	{ "userfault-move", act_userfault_move },
	{ "fork", act_fork },		  { "fork-often", act_fork_often },
	{ "child-advice", act_child_advice },
	{ "child-executes", act_child_executes },
	{ "clone-advice", act_clone_advice },
	{ "outlive", act_outlive },	  { "outlive-closed", act_outlive_closed },
	{ "unknown-fork", act_unknown_fork },
	{ "unknown-python", act_unknown_python },
	{ "unknown-clone", act_unknown_clone },
	{ "unknown-_Fork", act_unknown__fork },
	{ "unknown-raw", act_unknown_raw },
	{ "dontfork", act_dontfork },	  { "dontdump", act_dontdump },
	{ "nothing-at-all", act_nothing }, { "locked", act_left_to_ksm },
	{ "unprivileged", act_left_to_ksm }, { "filtered", act_left_to_ksm },
	{ "device-reads", act_device_reads },
	{ "device-writes", act_device_writes },
	{ "written-from-outside", act_written_from_outside },
	{ "spawn", act_spawn },		  { "storm", act_storm },
	{ "close-range", act_close_range },
	{ "close-range-unshare", act_close_range_unshare },
	{ "closefrom", act_closefrom },	  { "close-each", act_close_each },
	{ "dup-over", act_dup_over },	  { "few-descriptors", act_few_descriptors },
	{ "own-pipes", act_own_pipes },	  { "nothing-of-ours", act_nothing_of_ours },
	{ "daemon", act_daemon },	  { "exec-keeping", act_exec_keeping },
	{ "errors-end", act_errors_end }, { "errors-broken", act_errors_broken },
	{ "copies-fork", act_copies_fork },
	{ "copies-_Fork", act_copies_Fork },
	{ "copies-clone", act_copies_clone },
	{ "copies-syscall-clone", act_copies_syscall_clone },
	{ "copies-syscall-clone3", act_copies_syscall_clone3 },
	{ "copies-syscall-fork", act_copies_syscall_fork },
	{ "sharing-child", act_sharing_child },
	{ "by-number", act_by_number },
};

static void fill(void)
{
	for (unsigned long page = 0; page < FILLED; page++)
		for (unsigned long at = 0; at < PAGE / 8; at++)
			((uint64_t *)(ram + page * PAGE))[at] = word_of(page);
}

/* Advice that holds for all memory that is ever mapped there. */
static void advise_for_good(const char *action)
{
	if (strcmp(action, "dontfork") == 0)
		CHECK(madvise(ram, BYTES, MADV_DONTFORK) == 0);
	if (strcmp(action, "dontdump") == 0)
		CHECK(madvise(ram, BYTES, MADV_DONTDUMP) == 0);
}

static void offer(const char *backing)
{
	const int both = PROT_READ | PROT_WRITE;

	if (strcmp(backing, "memfd") == 0) {
		ram_fd = memfd_create("ram", MFD_CLOEXEC);
		CHECK(ram_fd >= 0 && ftruncate(ram_fd, BYTES) == 0);
		ram = mmap(NULL, BYTES, both, MAP_SHARED, ram_fd, 0);
	} else if (strcmp(backing, "file") == 0) {
		FILE *file = tmpfile();

		CHECK(file && ftruncate(fileno(file), BYTES) == 0);
		ram_fd = fileno(file);
		ram = mmap(NULL, BYTES, both, MAP_SHARED, ram_fd, 0);
	} else if (strcmp(backing, "shared") == 0) {
		ram = mmap(NULL, BYTES, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	} else {
		ram = mmap(NULL, BYTES, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	CHECK(ram != MAP_FAILED);
	errno = 77;
	CHECK(madvise(ram, BYTES, MADV_MERGEABLE) == 0);
	CHECK(errno == 77);
}

int main(int count, char **arguments)
{
	char line[16];

	if (count != 3)
		bad("usage: vmm <backing> <action>");
	if (strcmp(arguments[1], "after-exec") == 0) {
		after_exec(arguments[2]);
		return 0;
	}
	/* A test that hangs is a test that failed. */
	alarm(60 + (getenv("STORM_SECONDS") ? atoi(getenv("STORM_SECONDS")) : 0));
	hinder(arguments[2]);
	offer(arguments[1]);
	advise_for_good(arguments[2]);
	fill();
	printf("ready\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof line, stdin));
	for (unsigned at = 0; at < sizeof actions / sizeof actions[0]; at++) {
		if (strcmp(actions[at].name, arguments[2]) != 0)
			continue;
		actions[at].act();
		printf("ok\n");
		return 0;
	}
	if (!act_shared(arguments[2]))
		bad("no action %s", arguments[2]);
	printf("ok\n");
	return 0;
}
