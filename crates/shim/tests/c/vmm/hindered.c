/* Processes whose memory cannot be managed. */
#include "vmm.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Whether the kernel was told that the RAM may be merged by KSM. */
static int is_left_to_ksm(void)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	int inside = 0, found = 0;
	unsigned long start, end;
	char line[512];

	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start <= (unsigned long)ram && (unsigned long)ram < end;
		else if (inside && strncmp(line, "VmFlags:", 8) == 0)
			found = strstr(line, " mg") != NULL;
	}
	fclose(maps);
	return found;
}

void act_left_to_ksm(void)
{
	if (!is_left_to_ksm()) {
		/* KSM may not be built in. */
		CHECK(access("/sys/kernel/mm/ksm", F_OK) != 0);
	}
	expect(ram, 0, PAGES);
	write_through(0, PAGES);
}

/* Has the kernel refuse what a thread needs to leave this process's descriptor table. */
static int filter_tables(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof rules / sizeof rules[0], rules };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

void hinder(const char *how)
{
	if (strcmp(how, "locked") == 0) {
		if (mlockall(MCL_FUTURE) != 0) {
			printf("ready\nskipped\n");
			exit(0);
		}
	} else if (strcmp(how, "filtered") == 0) {
		if (filter_tables() != 0) {
			printf("ready\nskipped\n");
			exit(0);
		}
	} else if (strncmp(how, "errors-", strlen("errors-")) == 0) {
		hinder_errors();
	} else if (strcmp(how, "unprivileged") == 0) {
		FILE *setting = fopen("/proc/sys/vm/unprivileged_userfaultfd", "r");
		int allowed = 1;

		if (!setting || fscanf(setting, "%d", &allowed) != 1 || allowed ||
		    setgid(65534) != 0 || setuid(65534) != 0 ||
		    access("/dev/userfaultfd", R_OK | W_OK) == 0) {
			printf("ready\nskipped\n");
			exit(0);
		}
	}
}
