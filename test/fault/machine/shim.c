/*
 * A machine whose wall clock can be stepped and whose disk can be full or stand still, for the process that preloads it (LD_PRELOAD).
 *
 * What it is to be like is in the file that HOLDFAST_MACHINE names, which is mapped: a change takes effect at once. The offset has
 * 64 slots, since a write of eight bytes could be seen half done; one byte says which of them counts.
 *
 * The monotonic clock stays as it is, as when an administrator or NTP steps a clock. Threads that wait for each other until a time of
 * day wait for as long as they meant to when they began: else a clock that was set back would let InnoDB believe that it had waited
 * for ten minutes, and end itself. What else waits for one (sem_timedwait, a timerfd on CLOCK_REALTIME) still goes by the kernel's
 * clock. A full disk refuses bytes for regular files, and nothing else; one that stands still lets whoever waits for
 * it wait.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 64
#define NS_PER_S 1000000000LL
/* A time of day is more than thirty of them. */
#define YEARS_S 946684800LL

struct machine {
  uint8_t slot;
  uint8_t disk_is_full;
  uint8_t disk_is_still;
  /* Aligned, so from the eighth byte on. */
  int64_t offsets_ns[SLOTS];
};

static const struct machine *machine;

static int (*libc_clock_gettime)(clockid_t, struct timespec *);
static int (*libc_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static ssize_t (*libc_write)(int, const void *, size_t);
static ssize_t (*libc_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*libc_writev)(int, const struct iovec *, int);
static ssize_t (*libc_pwritev)(int, const struct iovec *, int, off_t);
static int (*libc_fallocate)(int, off_t, off_t);
static int (*libc_fsync)(int);
static int (*libc_fdatasync)(int);

/* A fault without effect would be worse than a process that does not start. */
static void fail(const char *what) {
  perror(what);
  _exit(127);
}

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) fail(name);
  return found;
}

/* There are two, and dlsym() gives the one of another age. */
static void *next_timedwait(void) {
  void *found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  return found ? found : next("pthread_cond_timedwait");
}

__attribute__((constructor)) static void start(void) {
  const char *file = getenv("HOLDFAST_MACHINE");
  int fd = open(file ? file : "", O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("HOLDFAST_MACHINE");
  void *mapped = mmap(NULL, sizeof(struct machine), PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) fail("HOLDFAST_MACHINE: mmap");
  close(fd);
  *(void **)&libc_timedwait = next_timedwait();
  *(void **)&libc_write = next("write");
  *(void **)&libc_pwrite = next("pwrite");
  *(void **)&libc_writev = next("writev");
  *(void **)&libc_pwritev = next("pwritev");
  *(void **)&libc_fallocate = next("posix_fallocate");
  *(void **)&libc_fsync = next("fsync");
  *(void **)&libc_fdatasync = next("fdatasync");
  *(void **)&libc_clock_gettime = next("clock_gettime");
  machine = mapped;
}

/* Clock */

static int64_t offset_ns(void) {
  if (!machine) return 0;
  uint8_t slot = __atomic_load_n(&machine->slot, __ATOMIC_ACQUIRE);
  return __atomic_load_n(&machine->offsets_ns[slot % SLOTS], __ATOMIC_RELAXED);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  /* jemalloc asks for the time before start() has run, under a lock that a dlsym() from here would wait for: this is where Redis
     hangs under libfaketime. */
  int failed = libc_clock_gettime ? libc_clock_gettime(clock, at) : (int)syscall(SYS_clock_gettime, clock, at);
  if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
  int64_t ns = at->tv_sec * NS_PER_S + at->tv_nsec + offset_ns();
  at->tv_sec = ns / NS_PER_S;
  at->tv_nsec = ns % NS_PER_S;
  return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  /* As the C library does it. */
  if (zone) memset(zone, 0, sizeof(struct timezone));
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

/* A condition may also go by the monotonic clock; that counts from when the machine was started. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
  if (!libc_timedwait) *(void **)&libc_timedwait = next_timedwait();
  if (until->tv_sec < YEARS_S) return libc_timedwait(condition, mutex, until);
  int64_t ns = until->tv_sec * NS_PER_S + until->tv_nsec - offset_ns();
  struct timespec real = {.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
  return libc_timedwait(condition, mutex, &real);
}

/* Disk */

static int is_refused(int fd) {
  struct stat about;
  if (!machine || !__atomic_load_n(&machine->disk_is_full, __ATOMIC_ACQUIRE)) return 0;
  if (fstat(fd, &about) || !S_ISREG(about.st_mode)) return 0;
  errno = ENOSPC;
  return 1;
}

static void await_disk(void) {
  const struct timespec pause = {.tv_nsec = 1000000};
  while (machine && __atomic_load_n(&machine->disk_is_still, __ATOMIC_ACQUIRE)) nanosleep(&pause, NULL);
}

/* What need not be on the disk at once, the kernel takes. */
static void await_direct(int fd) {
  if (fcntl(fd, F_GETFL) & (O_DIRECT | O_DSYNC)) await_disk();
}

int fsync(int fd) {
  await_disk();
  return libc_fsync ? libc_fsync(fd) : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
  await_disk();
  return libc_fdatasync ? libc_fdatasync(fd) : (int)syscall(SYS_fdatasync, fd);
}

ssize_t write(int fd, const void *bytes, size_t count) {
  if (!libc_write) return syscall(SYS_write, fd, bytes, count);
  return is_refused(fd) ? -1 : libc_write(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  if (!libc_pwrite) return syscall(SYS_pwrite64, fd, bytes, count, at);
  await_direct(fd);
  return is_refused(fd) ? -1 : libc_pwrite(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t at) {
  return pwrite(fd, bytes, count, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (!libc_writev) return syscall(SYS_writev, fd, parts, count);
  return is_refused(fd) ? -1 : libc_writev(fd, parts, count);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
  await_direct(fd);
  return is_refused(fd) ? -1 : libc_pwritev(fd, parts, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) {
  return pwritev(fd, parts, count, at);
}

int posix_fallocate(int fd, off_t at, off_t count) {
  return is_refused(fd) ? ENOSPC : libc_fallocate(fd, at, count);
}

int posix_fallocate64(int fd, off_t at, off_t count) {
  return posix_fallocate(fd, at, count);
}
