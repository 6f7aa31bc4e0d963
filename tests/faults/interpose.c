/* Stands between a program and the C library, counts calls that can fail, and makes one of them fail or kills the
 * process in front of it. Built twice: as a library for LD_PRELOAD, which also sees the calls of other libraries, and
 * with NMLP_FAULT_WRAP for ld's --wrap, which works under AddressSanitizer.
 *
 * Counting begins with main: what constructors of libcudart or libstdc++ do without memory is not ours to say.
 *
 * Environment: NMLP_FAULT_CLASS  letters: a allocations, f files, t threads, c calls that change the file system
 *              NMLP_FAULT_AT     which call, counted from 1; 0: none
 *              NMLP_FAULT_KILL   set: a signal instead of an error: this number, 6 for a core that shows the place
 *              NMLP_FAULT_EVERY  set: each call fails with this chance in a million, AT is the seed
 *              NMLP_FAULT_COUNT  file that receives the number of calls at exit
 *              NMLP_FAULT_PLACES file that receives eight bytes for every call: a hash of the functions it came through
 *              NMLP_FAULT_LOG    file that receives a line for every write (w), sync (s) and rename (r), with absolute
 *                                paths and tabs between them (sync.c) */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#ifdef NMLP_FAULT_WRAP
#define OURS(name) __wrap_##name
#define REAL(type, name, params) type __real_##name params
#define CALL(type, name, params) __real_##name
#else
#define OURS(name) name
#define REAL(type, name, params) extern int nmlp_fault_unused_##name
#define CALL(type, name, params) ((type(*) params)(uintptr_t)dlsym(RTLD_NEXT, #name))
#endif

/* A call that is wrapped: its prototype under our name and, for --wrap, under the C library's. */
#define WRAPPED(type, name, params)                                                                                    \
    REAL(type, name, params);                                                                                          \
    type OURS(name) params;                                                                                            \
    type OURS(name)                                                                                                    \
    params

static atomic_bool armed; /* main has begun */
static atomic_long n_calls;
static unsigned classes;
static long fails_at, chance;
static int kills;
static long log_fd = -1, places_fd = -1;

static void read_environment(void) {
    const char *letters = getenv("NMLP_FAULT_CLASS"), *at = getenv("NMLP_FAULT_AT");
    const char *every = getenv("NMLP_FAULT_EVERY");
    for (; letters && *letters; letters++) classes |= 1u << (*letters & 31);
    fails_at = at ? atol(at) : 0;
    chance = every ? atol(every) : 0;
    const char *number = getenv("NMLP_FAULT_KILL");
    kills = number ? atoi(number) : 0;
    const char *log = getenv("NMLP_FAULT_LOG");
    if (log) log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const char *places = getenv("NMLP_FAULT_PLACES");
    if (places) places_fd = syscall(SYS_openat, AT_FDCWD, places, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    atomic_store(&armed, true);
}

#ifdef NMLP_FAULT_WRAP
int __real_main(int argc, char **argv, char **environment);
int __wrap_main(int argc, char **argv, char **environment);

int __wrap_main(int argc, char **argv, char **environment) {
    read_environment();
    return __real_main(argc, argv, environment);
}
#else
typedef int main_function(int argc, char **argv, char **environment);
typedef int start_function(main_function *run, int argc, char **argv, void (*init)(void), void (*fini)(void),
                           void (*rtld_fini)(void), void *stack_end);
start_function __libc_start_main;

static main_function *real_main;

static int armed_main(int argc, char **argv, char **environment) {
    read_environment();
    return real_main(argc, argv, environment);
}

int __libc_start_main(main_function *run, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end) {
    real_main = run;
    start_function *start = (start_function *)(uintptr_t)dlsym(RTLD_NEXT, "__libc_start_main");
    return start(armed_main, argc, argv, init, fini, rtld_fini, stack_end);
}
#endif

static unsigned long mixed(unsigned long x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ul;
    x = (x ^ x >> 27) * 0x94d049bb133111ebul;
    return x ^ x >> 31;
}

/* ---- places ---- */

enum { FRAMES_MAX = 8 };

typedef struct stack_hash {
    unsigned long hash;
    int n_frames;
} stack_hash;

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *at) {
    stack_hash *s = at;
    s->hash = mixed(s->hash ^ (unsigned long)_Unwind_GetIP(context));
    return ++s->n_frames < FRAMES_MAX ? _URC_NO_REASON : _URC_END_OF_STACK;
}

/* Two calls of one place differ in the state they meet, not in the code that meets the error. */
static void write_place(long n) {
    static _Thread_local bool within; /* the unwinder may allocate */
    if (places_fd < 0 || within) return;
    within = true;
    stack_hash s = {0};
    _Unwind_Backtrace(add_frame, &s);
    (void)!syscall(SYS_pwrite64, places_fd, &s.hash, sizeof s.hash, (n - 1) * (long)sizeof s.hash);
    within = false;
}

/* True where the call is to fail; `kinds` are letters of NMLP_FAULT_CLASS it belongs to. */
static int fails(const char *kinds, int error) {
    unsigned mask = 0;
    for (; *kinds; kinds++) mask |= 1u << (*kinds & 31);
    if (!atomic_load(&armed) || !(mask & classes)) return 0;
    long n = atomic_fetch_add(&n_calls, 1) + 1;
    write_place(n);
    int now = chance ? (long)(mixed((unsigned long)(fails_at * 1000003 + n)) % 1000000) < chance : n == fails_at;
    if (!now) return 0;
    if (kills) syscall(SYS_kill, syscall(SYS_getpid), kills);
    errno = error;
    return 1;
}

__attribute__((destructor)) static void write_count(void) {
    char text[32];
    const char *path = getenv("NMLP_FAULT_COUNT");
    if (!path) return;
    int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&n_calls));
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0) (void)!syscall(SYS_write, fd, text, (size_t)n);
}

#ifndef NMLP_FAULT_WRAP
/* Destructors do not see this end. */
_Noreturn void _exit(int code);
_Noreturn void _exit(int code) {
    write_count();
    syscall(SYS_exit_group, code);
    __builtin_unreachable();
}
#endif

/* ---- log ---- */

enum { LOG_PATH_BYTES = 1024 };

/* A path as it is, or behind the working directory. */
static size_t put_path(char *line, size_t n, const char *path) {
    if (path[0] != '/') {
        long len = syscall(SYS_getcwd, line + n, LOG_PATH_BYTES);
        if (len > 0) n += (size_t)len - 1;
        line[n++] = '/';
    }
    size_t len = strlen(path);
    if (len >= LOG_PATH_BYTES) len = LOG_PATH_BYTES - 1;
    memcpy(line + n, path, len);
    return n + len;
}

static void log_paths(char kind, const char *a, const char *b) {
    char line[4 * LOG_PATH_BYTES + 8] = {kind, '\t'};
    size_t n = 2;
    if (log_fd < 0) return;
    n = put_path(line, n, a);
    line[n++] = '\t';
    if (b) n = put_path(line, n, b);
    line[n++] = '\n';
    (void)!syscall(SYS_write, log_fd, line, n);
}

static void log_descriptor(char kind, int fd) {
    char link[64], path[LOG_PATH_BYTES];
    if (log_fd < 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long len = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (len <= 0 || path[0] != '/') return; /* a pipe, a socket */
    path[len] = '\0';
    log_paths(kind, path, NULL);
}

/* ---- allocations ---- */

#ifdef NMLP_FAULT_WRAP
#define LIBC(name) __real_##name
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
int __real_posix_memalign(void **out, size_t align, size_t bytes);
char *__real_strdup(const char *text);
#else /* dlsym allocates: these have other names in glibc */
#define LIBC(name) __libc_##name
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
#endif

void *OURS(malloc)(size_t bytes);
void *OURS(calloc)(size_t count, size_t size);
void *OURS(realloc)(void *block, size_t bytes);
void *OURS(aligned_alloc)(size_t align, size_t bytes);
int OURS(posix_memalign)(void **out, size_t align, size_t bytes);

#ifdef NMLP_FAULT_WRAP
#define IS_UNCHECKED false /* libraries call the C library's */
#else
/* OpenBLAS 0.3.21 takes a block of kilobytes for products of small matrices and does not look whether it got one.
 * libgfortran, which comes with it, ends the process itself, from a constructor and beside threads that run. */
static bool is_unchecked(const void *caller) {
    Dl_info where;
    if (!dladdr(caller, &where)) return false;
    return (where.dli_sname && strstr(where.dli_sname, "gemm_small_kernel")) ||
           (where.dli_fname && strstr(where.dli_fname, "libgfortran"));
}
#define IS_UNCHECKED is_unchecked(__builtin_return_address(0))
#endif

void *OURS(malloc)(size_t bytes) { return fails("a", ENOMEM) && !IS_UNCHECKED ? NULL : LIBC(malloc)(bytes); }

void *OURS(calloc)(size_t count, size_t size) { return fails("a", ENOMEM) ? NULL : LIBC(calloc)(count, size); }

void *OURS(realloc)(void *block, size_t bytes) {
    return bytes && fails("a", ENOMEM) ? NULL : LIBC(realloc)(block, bytes);
}

#ifdef NMLP_FAULT_WRAP
void *OURS(aligned_alloc)(size_t align, size_t bytes) {
    return fails("a", ENOMEM) ? NULL : __real_aligned_alloc(align, bytes);
}

int OURS(posix_memalign)(void **out, size_t align, size_t bytes) {
    return fails("a", ENOMEM) ? ENOMEM : __real_posix_memalign(out, align, bytes);
}

char *OURS(strdup)(const char *text);
char *OURS(strdup)(const char *text) { return fails("a", ENOMEM) ? NULL : __real_strdup(text); }
#else
void *OURS(aligned_alloc)(size_t align, size_t bytes) {
    return fails("a", ENOMEM) ? NULL : __libc_memalign(align, bytes);
}

int OURS(posix_memalign)(void **out, size_t align, size_t bytes) {
    void *block = fails("a", ENOMEM) ? NULL : __libc_memalign(align, bytes);
    if (block) *out = block;
    return block ? 0 : ENOMEM;
}
#endif

WRAPPED(void *, mmap, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset)) {
    if (fails(flags & MAP_ANONYMOUS ? "a" : "f", ENOMEM)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

/* ---- threads ---- */

WRAPPED(int, pthread_create,
        (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)) {
    if (fails("t", EAGAIN)) return EAGAIN;
    return CALL(int, pthread_create,
                (pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))(thread, attributes, run, argument);
}

/* ---- files ---- */

/* "fc": a call that may create a file changes the file system. */
static const char *open_kinds(int flags) { return flags & (O_CREAT | O_TRUNC) ? "fc" : "f"; }

WRAPPED(int, open, (const char *path, int flags, ...)) {
    va_list rest;
    va_start(rest, flags);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, unsigned) : 0;
    va_end(rest);
    if (fails(open_kinds(flags), EIO)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

WRAPPED(int, openat, (int dir, const char *path, int flags, ...)) {
    va_list rest;
    va_start(rest, flags);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, unsigned) : 0;
    va_end(rest);
    if (fails(open_kinds(flags), EIO)) return -1;
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

WRAPPED(FILE *, fopen, (const char *path, const char *mode)) {
    if (fails(mode[0] == 'r' ? "f" : "fc", EIO)) return NULL;
    return CALL(FILE *, fopen, (const char *, const char *))(path, mode);
}

/* What wakes a thread of the same process (a pipe, an eventfd) does not fail in the kernel. */
static const char *transfer_kinds(int fd, const char *kinds) {
    struct stat info;
    if (fd <= 2 || fstat(fd, &info) != 0 || S_ISREG(info.st_mode) || S_ISCHR(info.st_mode)) return kinds;
    return "";
}

WRAPPED(ssize_t, read, (int fd, void *bytes, size_t len)) {
    return fails(transfer_kinds(fd, "f"), EIO) ? -1 : syscall(SYS_read, fd, bytes, len);
}

WRAPPED(ssize_t, pread, (int fd, void *bytes, size_t len, off_t offset)) {
    return fails("f", EIO) ? -1 : syscall(SYS_pread64, fd, bytes, len, offset);
}

WRAPPED(ssize_t, write, (int fd, const void *bytes, size_t len)) {
    log_descriptor('w', fd);
    return fails(transfer_kinds(fd, "fc"), ENOSPC) ? -1 : syscall(SYS_write, fd, bytes, len);
}

WRAPPED(ssize_t, pwrite, (int fd, const void *bytes, size_t len, off_t offset)) {
    log_descriptor('w', fd);
    return fails("fc", ENOSPC) ? -1 : syscall(SYS_pwrite64, fd, bytes, len, offset);
}

WRAPPED(int, fsync, (int fd)) {
    log_descriptor('s', fd);
    return fails("fc", EIO) ? -1 : (int)syscall(SYS_fsync, fd);
}

WRAPPED(int, fdatasync, (int fd)) {
    log_descriptor('s', fd);
    return fails("fc", EIO) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

WRAPPED(int, ftruncate, (int fd, off_t len)) {
    log_descriptor('w', fd);
    return fails("fc", ENOSPC) ? -1 : (int)syscall(SYS_ftruncate, fd, len);
}

WRAPPED(int, fallocate, (int fd, int mode, off_t at, off_t len)) {
    log_descriptor('w', fd);
    return fails("fc", ENOSPC) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, len);
}

WRAPPED(int, rename, (const char *from, const char *to)) {
    log_paths('r', from, to);
    return fails("fc", EIO) ? -1 : (int)syscall(SYS_rename, from, to);
}

WRAPPED(int, renameat2, (int from_dir, const char *from, int to_dir, const char *to, unsigned flags)) {
    log_paths('r', from, to);
    return fails("fc", EIO) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

WRAPPED(int, mkdir, (const char *path, mode_t mode)) {
    return fails("fc", EIO) ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

WRAPPED(int, unlink, (const char *path)) { return fails("fc", EIO) ? -1 : (int)syscall(SYS_unlink, path); }

WRAPPED(int, unlinkat, (int dir, const char *path, int flags)) {
    return fails("fc", EIO) ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
}

WRAPPED(int, mkstemp, (char *path)) { return fails("fc", ENOSPC) ? -1 : CALL(int, mkstemp, (char *))(path); }

WRAPPED(int, mkostemp, (char *path, int flags)) {
    return fails("fc", ENOSPC) ? -1 : CALL(int, mkostemp, (char *, int))(path, flags);
}

WRAPPED(int, fchmod, (int fd, mode_t mode)) { return fails("fc", EIO) ? -1 : (int)syscall(SYS_fchmod, fd, mode); }

WRAPPED(DIR *, opendir, (const char *path)) {
    return fails("f", EIO) ? NULL : CALL(DIR *, opendir, (const char *))(path);
}

WRAPPED(DIR *, fdopendir, (int fd)) { return fails("f", EIO) ? NULL : CALL(DIR *, fdopendir, (int))(fd); }

WRAPPED(int, flock, (int fd, int operation)) {
    return fails("f", ENOLCK) ? -1 : (int)syscall(SYS_flock, fd, operation);
}
