// A library for LD_PRELOAD, used by scripts/slow/failing-calls: the FAIL_AT-th call on a regular file or a directory fails with
// FAIL_ERRNO, and the file FAIL_HIT is created. It works with a dynamically linked build.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;

static int fails(void) {
    static long at;
    if (!at) at = getenv("FAIL_AT") ? atol(getenv("FAIL_AT")) : -1;
    if (atomic_fetch_add(&calls, 1) + 1 != at) return 0;
    int hit = creat(getenv("FAIL_HIT"), 0644);
    if (hit >= 0) close(hit);
    errno = atoi(getenv("FAIL_ERRNO"));
    return 1;
}

static int is_file(int fd) {
    struct stat st;
    return fd > 2 && fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *b, size_t n) { REAL(write); return is_file(fd) && fails() ? -1 : real(fd, b, n); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) { REAL(pwrite64); return is_file(fd) && fails() ? -1 : real(fd, b, n, o); }
ssize_t read(int fd, void *b, size_t n) { REAL(read); return is_file(fd) && fails() ? -1 : real(fd, b, n); }
ssize_t pread64(int fd, void *b, size_t n, off64_t o) { REAL(pread64); return is_file(fd) && fails() ? -1 : real(fd, b, n, o); }
int fsync(int fd) { REAL(fsync); return fails() ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return fails() ? -1 : real(fd); }
int syncfs(int fd) { REAL(syncfs); return fails() ? -1 : real(fd); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); return fails() ? -1 : real(fd, n); }
int rename(const char *a, const char *b) { REAL(rename); return fails() ? -1 : real(a, b); }
int renameat(int x, const char *a, int y, const char *b) { REAL(renameat); return fails() ? -1 : real(x, a, y, b); }
int link(const char *a, const char *b) { REAL(link); return fails() ? -1 : real(a, b); }
int linkat(int x, const char *a, int y, const char *b, int f) { REAL(linkat); return fails() ? -1 : real(x, a, y, b, f); }
int mkdir(const char *p, mode_t m) { REAL(mkdir); return fails() ? -1 : real(p, m); }
int mkdirat(int d, const char *p, mode_t m) { REAL(mkdirat); return fails() ? -1 : real(d, p, m); }
int unlink(const char *p) { REAL(unlink); return fails() ? -1 : real(p); }
int unlinkat(int d, const char *p, int f) { REAL(unlinkat); return fails() ? -1 : real(d, p, f); }
int futimens(int fd, const struct timespec t[2]) { REAL(futimens); return fails() ? -1 : real(fd, t); }
int fchmod(int fd, mode_t m) { REAL(fchmod); return fails() ? -1 : real(fd, m); }
