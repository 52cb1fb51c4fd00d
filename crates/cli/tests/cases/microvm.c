/*
 * A process that restores its memory as Firecracker does: memory registered with a userfaultfd, which is sent over a
 * Unix socket with one message of JSON. What is restored is compared with a file, byte for byte.
 *
 * microvm SOCKET FILE HOW [NUMBER]
 *   verify THREADS   reads all pages, in an order of its own
 *   remove           discards pages while others are read: those are zero from then on
 *   damaged PAGE     expects SIGBUS at that page, and all others right
 *   huge             as verify, in huge pages of hugetlbfs
 *   wait             connects, touches one page, and waits to be ended
 *   first PAGE       touches pages from that one on, 16 apart, and ends
 *   split            as verify, with a message that comes in two parts
 *   garbage, nothing, two, none, other, outside, overlap, overflow, hangup   messages that make no sense
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096
#define CHECK(what) do { if (!(what)) { printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)); fflush(stdout); _exit(1); } } while (0)

static unsigned char *expected, *low, *high;
static size_t bytes, low_bytes;
static unsigned long threads = 1;

/* The second region lies anywhere, so that addresses and offsets do not follow each other. */
static unsigned char *at(size_t offset) {
    return offset < low_bytes ? low + offset : high + (offset - low_bytes);
}

static int context(void) {
    int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) { printf("skip: userfaultfd: %s\n", strerror(errno)); exit(77); }
    struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE };
    CHECK(ioctl(fd, UFFDIO_API, &api) == 0);
    return fd;
}

static void reg(int fd, void *start, size_t length) {
    struct uffdio_register r = { .range = { (uintptr_t)start, length }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    CHECK(ioctl(fd, UFFDIO_REGISTER, &r) == 0);
}

static int join(const char *path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void send_with(int socket, const char *text, size_t length, int *fds, int count) {
    char control[CMSG_SPACE(sizeof(int) * 4)] = { 0 };
    struct iovec part = { (void *)text, length };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(head), fds, sizeof(int) * count);
    }
    CHECK(sendmsg(socket, &message, 0) == (ssize_t)length);
}

/* Waits until the other end closes: a message that was refused. */
static int refused(int socket) {
    struct pollfd polled = { socket, POLLIN, 0 };
    char byte;
    return poll(&polled, 1, 15000) == 1 && read(socket, &byte, 1) <= 0;
}

static void *verify(void *argument) {
    size_t pages = bytes / PAGE, seed = (size_t)argument * 7919 + 13;
    for (size_t n = 0; n < pages; n++) {
        size_t page = (seed + n * 40503) % pages;
        if (memcmp(at(page * PAGE), expected + page * PAGE, PAGE)) {
            printf("page %zu is wrong\n", page);
            _exit(1);
        }
    }
    return NULL;
}

static size_t gcd(size_t a, size_t b) { return b ? gcd(b, a % b) : a; }

static void verify_all(void) {
    /* Each page once: the step has no factor in common with their number. */
    CHECK(gcd(40503, bytes / PAGE) == 1);
    pthread_t thread[64];
    CHECK(threads <= 64);
    for (size_t n = 0; n < threads; n++) CHECK(!pthread_create(&thread[n], NULL, verify, (void *)n));
    for (size_t n = 0; n < threads; n++) pthread_join(thread[n], NULL);
}

static const unsigned char zeros[PAGE];

static int is_removed(size_t page) { return (page / 8) % 3 == 1; }

static void *discard(void *argument) {
    (void)argument;
    size_t pages = bytes / PAGE;
    for (size_t page = 0; page < pages; page++)
        if (is_removed(page)) CHECK(madvise(at(page * PAGE), PAGE, MADV_DONTNEED) == 0);
    return NULL;
}

static void *watch(void *argument) {
    size_t pages = bytes / PAGE, seed = (size_t)argument * 104729 + 7;
    for (size_t n = 0; n < pages; n++) {
        size_t page = (seed + n * 40503) % pages;
        unsigned char seen[PAGE];
        memcpy(seen, at(page * PAGE), PAGE);
        int is_old = !memcmp(seen, expected + page * PAGE, PAGE), is_zero = !memcmp(seen, zeros, PAGE);
        if (!is_old && !(is_zero && is_removed(page)) && !is_removed(page)) {
            printf("page %zu is wrong while others are discarded\n", page);
            _exit(1);
        }
    }
    return NULL;
}

static void remove_some(void) {
    pthread_t thread[4];
    CHECK(!pthread_create(&thread[0], NULL, discard, NULL));
    for (size_t n = 1; n < 4; n++) CHECK(!pthread_create(&thread[n], NULL, watch, (void *)n));
    for (size_t n = 0; n < 4; n++) pthread_join(thread[n], NULL);
    for (int round = 0; round < 2; round++) {
        for (size_t page = 0; page < bytes / PAGE; page++) {
            const unsigned char *want = is_removed(page) ? zeros : expected + page * PAGE;
            if (memcmp(at(page * PAGE), want, PAGE)) {
                printf("page %zu is wrong after the discard\n", page);
                _exit(1);
            }
        }
        /* What is written there stays, until it is discarded again. */
        for (size_t page = 0; page < bytes / PAGE; page++)
            if (is_removed(page)) at(page * PAGE)[7] = 9;
        discard(NULL);
    }
}

static sigjmp_buf back;
static void on_bus(int signal) { (void)signal; siglongjmp(back, 1); }

static void damaged(size_t page) {
    signal(SIGBUS, on_bus);
    for (volatile size_t n = 0; n < bytes / PAGE; n++) {
        volatile int got = 0;
        if (sigsetjmp(back, 1)) got = 1;
        else got = memcmp(at(n * PAGE), expected + n * PAGE, PAGE) ? 2 : 0;
        if (got != (n == page)) {
            printf("page %zu: %d\n", n, got);
            _exit(1);
        }
    }
}

int main(int count, char **words) {
    CHECK(count >= 4);
    const char *how = words[3];
    unsigned long number = count > 4 ? strtoul(words[4], NULL, 10) : 0;
    int file = open(words[2], O_RDONLY), is_huge = !strcmp(how, "huge");
    struct stat stat;
    CHECK(file >= 0 && fstat(file, &stat) == 0);
    bytes = stat.st_size;
    expected = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    CHECK(expected != MAP_FAILED);
    size_t page = is_huge ? 2 << 20 : PAGE;
    low_bytes = bytes / page * 3 / 4 * page;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (is_huge ? MAP_HUGETLB : MAP_NORESERVE);
    high = mmap(NULL, bytes - low_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    low = mmap(NULL, low_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (low == MAP_FAILED || high == MAP_FAILED) { printf("skip: %s\n", strerror(errno)); return 77; }
    int fd = context();
    reg(fd, low, low_bytes);
    reg(fd, high, bytes - low_bytes);
    char text[1024];
    snprintf(text, sizeof text,
        "[{\"base_host_virt_addr\":%zu,\"size\":%zu,\"offset\":0,\"page_size\":%zu,\"page_size_kib\":%zu},"
        "{\"base_host_virt_addr\":%zu,\"size\":%zu,\"offset\":%zu,\"page_size\":%zu,\"page_size_kib\":%zu}]",
        (size_t)low, low_bytes, page, page, (size_t)high, bytes - low_bytes, low_bytes, page, page);
    int socket = join(words[1]), fds[2] = { fd, fd };
    size_t length = strlen(text);
    if (!strcmp(how, "garbage")) send_with(socket, "[{\"base\":]", 10, fds, 1);
    else if (!strcmp(how, "nothing")) send_with(socket, "[]", 2, fds, 1);
    else if (!strcmp(how, "two")) send_with(socket, text, length, fds, 2);
    else if (!strcmp(how, "none")) send_with(socket, text, length, fds, 0);
    else if (!strcmp(how, "other")) send_with(socket, text, length, &file, 1);
    else if (!strcmp(how, "hangup")) { send_with(socket, text, length / 2, fds, 1); close(socket); puts("ok"); return 0; }
    else if (!strcmp(how, "outside") || !strcmp(how, "overlap") || !strcmp(how, "overflow")) {
        size_t base = (size_t)low, size = bytes, offset = 0;
        if (how[3] == 's') offset = low_bytes;
        if (how[5] == 'l') base = SIZE_MAX - 4095;
        int n = snprintf(text, sizeof text,
            "[{\"base_host_virt_addr\":%zu,\"size\":%zu,\"offset\":%zu}%s%s", base, size, offset,
            how[5] == 'a' ? ",{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0}" : "", "]");
        send_with(socket, text, n, fds, 1);
    } else if (!strcmp(how, "split")) {
        send_with(socket, text, 40, fds, 1);
        usleep(100000);
        send_with(socket, text + 40, length - 40, fds, 0);
        verify_all();
        puts("ok");
        return 0;
    } else {
        send_with(socket, text, length, fds, 1);
        if (!strcmp(how, "verify")) { threads = number ? number : 1; verify_all(); }
        else if (is_huge) { verify_all(); CHECK(madvise(low, page, MADV_DONTNEED) == 0 && low[5] == 0); }
        else if (!strcmp(how, "remove")) remove_some();
        else if (!strcmp(how, "damaged")) damaged(number);
        else if (!strcmp(how, "first")) { for (size_t n = number; n < number + 160; n += 16) CHECK(*(volatile unsigned char *)at(n * PAGE) == expected[n * PAGE]); }
        else if (!strcmp(how, "wait")) { volatile unsigned char touched = *at(0); (void)touched; puts("waits"); fflush(stdout); pause(); }
        else CHECK(!"an unknown way");
        puts("ok");
        return 0;
    }
    CHECK(refused(socket));
    puts("ok");
    return 0;
}
