// Preloaded by tests/tools/save_failure_test.cpp: every second call of each function below is
// interrupted as if by a signal, and every second submission to io_uring is refused for now. At the
// end of the process a line with name and number of calls is written to the file ZG_INTERRUPTED for
// each function. ZG_NO_URING disables io_uring; ZG_NO_LOCKS emulates a file system without locks.
// ZG_MOST_THREADS is a limit of the threads beside the first one, as `ulimit -u` sets it, which
// does not bind root; then no call is interrupted.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

extern "C" {
struct io_uring;
}

namespace {

struct Function {
  const char* name;
  std::atomic<int> calls{0}, interrupted{0};

  bool is_interrupted() {
    if (std::getenv("ZG_MOST_THREADS")) return false;
    if (calls++ % 2 != 0) return false;
    ++interrupted;
    errno = EINTR;
    return true;
  }
  template <class Type>
  Type* original() const {
    return reinterpret_cast<Type*>(dlsym(RTLD_NEXT, name));
  }
};

Function fsyncs{"fsync"}, flocks{"flock"}, fallocates{"fallocate"},
    posix_fallocates{"posix_fallocate"}, opens{"open"}, closes{"close"}, preads{"pread"},
    pwrites{"pwrite"}, submits{"io_uring_submit"};

struct Start {
  void* (*run)(void*);
  void* argument;
};
std::atomic<int> threads{0};

void* run_thread(void* started) {
  const Start start = *static_cast<Start*>(started);
  delete static_cast<Start*>(started);
  void* const result = start.run(start.argument);
  --threads;
  return result;
}

struct Report {
  ~Report() {
    const char* path = std::getenv("ZG_INTERRUPTED");
    std::FILE* file = path ? std::fopen(path, "a") : nullptr;
    if (!file) return;
    for (const Function* function : {&fsyncs, &flocks, &fallocates, &posix_fallocates, &opens,
                                     &closes, &preads, &pwrites, &submits})
      std::fprintf(file, "%s %d\n", function->name, function->interrupted.load());
    std::fclose(file);
  }
} report;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int fsync(int file) { return fsyncs.is_interrupted() ? -1 : fsyncs.original<int(int)>()(file); }
int flock(int file, int operation) {
  if (flocks.is_interrupted()) return -1;
  if (!std::getenv("ZG_NO_LOCKS")) return flocks.original<int(int, int)>()(file, operation);
  errno = ENOLCK;
  return -1;
}
int fallocate(int file, int mode, off_t offset, off_t bytes) {
  return fallocates.is_interrupted()
             ? -1
             : fallocates.original<int(int, int, off_t, off_t)>()(file, mode, offset, bytes);
}
int posix_fallocate(int file, off_t offset, off_t bytes) {
  return posix_fallocates.is_interrupted()
             ? EINTR
             : posix_fallocates.original<int(int, off_t, off_t)>()(file, offset, bytes);
}
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return opens.is_interrupted() ? -1
                                : opens.original<int(const char*, int, ...)>()(path, flags, mode);
}
// Linux closes the file and then says that it was interrupted.
int close(int file) {
  const int result = closes.original<int(int)>()(file);
  return closes.is_interrupted() ? -1 : result;
}
ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  return preads.is_interrupted()
             ? -1
             : preads.original<ssize_t(int, void*, size_t, off_t)>()(file, to, bytes, offset);
}
ssize_t pwrite(int file, const void* from, size_t bytes, off_t offset) {
  return pwrites.is_interrupted() ? -1
                                  : pwrites.original<ssize_t(int, const void*, size_t, off_t)>()(
                                        file, from, bytes, offset);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  const Function original{"pthread_create"};
  const char* most = std::getenv("ZG_MOST_THREADS");
  if (most && threads >= std::atoi(most)) return EAGAIN;
  ++threads;
  return original.original<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>()(
      thread, attributes, run_thread, new Start{run, argument});
}
int io_uring_queue_init(unsigned entries, struct io_uring* ring, unsigned flags) {
  if (std::getenv("ZG_NO_URING")) return -ENOSYS;
  const Function original{"io_uring_queue_init"};
  return original.original<int(unsigned, struct io_uring*, unsigned)>()(entries, ring, flags);
}
int io_uring_submit(struct io_uring* ring) {
  if (!submits.is_interrupted()) return submits.original<int(struct io_uring*)>()(ring);
  return submits.interrupted % 2 == 0 ? -EBUSY : -EAGAIN;
}
}
#pragma GCC visibility pop
