// Tells a program what RADV does with a GPU that is not there: a library to preload before Mesa's
// stand-in for Linux's amdgpu driver. It passes every call on, maps each buffer that gets a GPU
// address a second time, and calls back when a buffer comes, goes, or commands are submitted.
//
// Built by scripts/with-mesa emulate; package rdna registers. Structs are those of amdgpu_drm.h.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { create = 0x40, gem_mmap = 0x41, submit = 0x44, gem_va = 0x48 }; // DRM_COMMAND_BASE + AMDGPU's
enum { va_map = 1, va_unmap = 2, va_clear = 3, va_replace = 4, chunk_ib = 1 };

struct va { uint32_t handle, pad, operation, flags; uint64_t address, offset, size; };
struct chunk { uint32_t id, dwords; uint64_t data; };
struct ib { uint32_t pad, flags; uint64_t address; uint32_t bytes, ip, instance, ring; };
struct cs { uint32_t ctx, list, chunks, flags; uint64_t pointers; };

typedef void (*mapped_fn)(uint64_t address, uint64_t size, void *host);
typedef void (*submit_fn)(uint64_t address, uint32_t bytes);
static mapped_fn on_map;
static submit_fn on_submit;

// Called by the program: host is NULL where memory goes.
void vkmla_emulate(mapped_fn map, submit_fn submitted) { on_map = map; on_submit = submitted; }

enum { handles = 1 << 20, views = 1 << 16 };
static uint64_t sizes[handles]; // of buffers
static struct { uint64_t address, size; void *host; size_t bytes; } view[views];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int (*real)(int, unsigned long, ...);

static void gone(uint64_t address, uint64_t size) {
  for (int i = 0; i < views; i++)
    if (view[i].bytes && view[i].address >= address && view[i].address - address < size) {
      on_map(view[i].address, view[i].size, NULL);
      munmap(view[i].host, view[i].bytes);
      view[i].bytes = 0;
    }
}

static void came(int fd, struct va *x) {
  uint64_t at = x->handle; // in: a handle, out: an offset
  if (!x->handle || real(fd, 0xC0080000ul | 'd' << 8 | gem_mmap, &at))
    return;
  size_t bytes = x->offset + x->size;
  if (x->handle < handles && sizes[x->handle] && sizes[x->handle] < bytes)
    bytes = sizes[x->handle];
  char *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
  int i = 0;
  while (i < views && view[i].bytes)
    i++;
  if (host == MAP_FAILED || i == views) {
    perror("interpose: a buffer cannot be mapped");
    exit(1);
  }
  view[i].address = x->address;
  view[i].size = bytes - x->offset;
  view[i].host = host;
  view[i].bytes = bytes;
  on_map(view[i].address, view[i].size, host + x->offset);
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *arg = va_arg(list, void *);
  va_end(list);
  if (!real)
    real = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
  int nr = (request >> 8 & 0xff) == 'd' && on_map ? request & 0xff : 0;
  uint64_t want = nr == create ? *(uint64_t *)arg : 0; // arguments are overwritten by results
  struct va x = {0};
  struct cs cs = {0};
  if (nr == gem_va)
    x = *(struct va *)arg;
  if (nr == submit)
    cs = *(struct cs *)arg;
  int r = real(fd, request, arg);
  pthread_mutex_lock(&lock);
  if (nr == create && !r && *(uint32_t *)arg < handles)
    sizes[*(uint32_t *)arg] = want;
  if (nr == gem_va && !r && (x.operation == va_unmap || x.operation == va_clear || x.operation == va_replace))
    gone(x.address, x.size);
  if (nr == gem_va && !r && (x.operation == va_map || x.operation == va_replace))
    came(fd, &x);
  pthread_mutex_unlock(&lock);
  for (unsigned i = 0; nr == submit && i < cs.chunks; i++) {
    struct chunk *c = (struct chunk *)((uint64_t *)cs.pointers)[i];
    if (c->id == chunk_ib)
      on_submit(((struct ib *)c->data)->address, ((struct ib *)c->data)->bytes);
  }
  return r;
}
