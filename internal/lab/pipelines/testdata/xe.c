// A GPU of Intel's that is not there, for Mesa's ANV to compile for: a library to preload that
// answers what ANV asks libdrm and Linux's xe driver. Memory is that of a file without a name, and
// commands are done as soon as they are submitted: nothing is executed. INTEL_GPU names the GPU.
//
// Built and used by scripts/with-mesa anv. Structs and numbers are those of Linux's drm.h and
// xe_drm.h and libdrm's xf86drm.h, as far as they are read; the GPUs are those of Mesa's tables.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct gpu {
  const char *name;
  uint16_t device, major, minor; // PCI id, version of its graphics
  int vram, cores, units, wide;  // memory of its own; Xe cores, their vector engines, 1: of 16 lanes
} gpus[] = {
  { "tgl", 0x9a49, 12, 0, 0, 6, 16, 0 },   // Xe-LP: Tiger Lake
  { "mtl", 0x7d55, 12, 70, 0, 8, 16, 0 },  // Xe-LPG: Meteor Lake
  { "dg2", 0x56a0, 12, 55, 1, 32, 16, 0 }, // Xe-HPG: Arc A770
  { "lnl", 0x64a0, 20, 4, 0, 8, 8, 1 },    // Xe2: Lunar Lake
  { "bmg", 0xe20b, 20, 1, 1, 20, 8, 1 },   // Xe2: Arc B580
  { "ptl", 0xb080, 30, 0, 0, 12, 8, 1 },   // Xe3: Panther Lake
};

static const struct gpu *gpu(void) {
  const char *name = getenv("INTEL_GPU");
  for (unsigned i = 0; name && i < sizeof gpus / sizeof *gpus; i++) {
    if (!strcmp(gpus[i].name, name)) return &gpus[i];
  }
  fprintf(stderr, "INTEL_GPU names none of tgl mtl dg2 lnl bmg ptl\n");
  exit(2);
}

// libdrm's list of devices.

struct device {
  char **nodes;
  int available, bus;
  void *bus_info, *device_info;
};

static char render[] = "/dev/dri/renderD128";

static struct device *device(void) {
  static char primary[] = "/dev/dri/card0", control[] = "/dev/dri/controlD64";
  static char *nodes[] = { primary, control, render };
  static struct { uint16_t domain; uint8_t bus, device, function; } bus = { 0, 0, 2, 0 };
  static struct { uint16_t vendor, device, subvendor, subdevice; uint8_t revision; } info = { 0x8086, 0, 0x8086, 0, 0 };
  static struct device d = { nodes, 1 << 2, 0, &bus, &info };
  info.device = gpu()->device;
  return &d;
}

int drmGetDevices2(uint32_t flags, struct device **list, int most) {
  if (list && most > 0) list[0] = device();
  return 1;
}

int drmGetDevice2(int fd, uint32_t flags, struct device **d) {
  *d = device();
  return 0;
}

void drmFreeDevice(struct device **d) { *d = NULL; }

void drmFreeDevices(struct device **list, int n) { memset(list, 0, n * sizeof *list); }

// The render node is a file without a name, opened anew each time. Its descriptors are known by
// what they refer to.

static struct stat node;

int open64(const char *path, int flags, ...) {
  static int (*next)(const char *, int, ...);
  static int memory = -1;
  char again[64];
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (!next) next = dlsym(RTLD_NEXT, "open64");
  if (strcmp(path, render)) return next(path, flags, mode);
  if (memory < 0) {
    memory = memfd_create("renderD128", MFD_CLOEXEC);
    if (memory < 0 || ftruncate(memory, 1ll << 40) || fstat(memory, &node)) return -1;
  }
  snprintf(again, sizeof again, "/proc/self/fd/%d", memory);
  return next(again, O_RDWR | O_CLOEXEC);
}

static int ours(int fd) {
  struct stat s;
  return node.st_ino && !fstat(fd, &s) && s.st_ino == node.st_ino && s.st_dev == node.st_dev;
}

// Answers to DRM_IOCTL_XE_DEVICE_QUERY. The first call of a pair asks for the size.

struct query { uint64_t extensions; uint32_t query, size; uint64_t data, reserved[2]; };

static int answer(struct query *q, const void *data, size_t size) {
  if (!q->data) q->size = size;
  else memcpy((void *)(uintptr_t)q->data, data, size < q->size ? size : q->size);
  return 0;
}

static int query_engines(struct query *q) { // render, compute, copy
  struct { uint32_t count, pad; struct { uint16_t class, instance, gt, pad; uint64_t reserved[3]; } of[3]; } e = {
    3, 0, { { 0 }, { 4 }, { 1 } } };
  return answer(q, &e, sizeof e);
}

static int query_memory(struct query *q, const struct gpu *g) { // the system's 32 GiB, 12 GiB of its own
  struct region { uint16_t class, instance; uint32_t page; uint64_t size, used, visible, visible_used, reserved[6]; };
  struct { uint32_t count, pad; struct region of[2]; } r = {
    1 + g->vram, 0, { { 0, 0, 4096, 32ull << 30 }, { 1, 1, 65536, 12ull << 30, 0, 12ull << 30 } } };
  return answer(q, &r, sizeof r - (1 - g->vram) * sizeof(struct region));
}

static int query_config(struct query *q, const struct gpu *g) { // device, flags, alignment, address bits, priorities
  struct { uint32_t count, pad; uint64_t of[5]; } c = { 5, 0, { g->device, g->vram, g->vram ? 65536 : 4096, 48, 2 } };
  return answer(q, &c, sizeof c);
}

static int query_gts(struct query *q, const struct gpu *g) {
  struct {
    uint32_t count, pad;
    uint16_t type, tile, gt, pad1[3]; uint32_t clock;
    uint64_t near, far;
    uint16_t major, minor, revision, pad2; uint64_t reserved[7];
  } t = { 1, 0, .clock = 19200000, .near = 1, .far = 2, .major = g->major, .minor = g->minor, .revision = 4 };
  return answer(q, &t, sizeof t);
}

static int query_topology(struct query *q, const struct gpu *g) { // cores for graphics, for compute, cache banks, units
  struct { uint16_t gt, type; uint32_t bytes; uint64_t mask; } __attribute__((packed)) t[4] = {
    { 0, 1, 8, (1ull << g->cores) - 1 }, { 0, 2, 8, (1ull << g->cores) - 1 }, { 0, 3, 8, 0xff },
    { 0, g->wide ? 5 : 4, 4, (1ull << g->units) - 1 } };
  return answer(q, t, sizeof t - 4); // the last mask has 4 bytes
}

static int query_firmware(struct query *q) { // of submissions, version 1.30
  struct { uint16_t type, pad; uint32_t branch, major, minor, patch, pad1; uint64_t reserved; } v = { .major = 1, .minor = 30 };
  return answer(q, &v, sizeof v);
}

static int query(struct query *q) {
  switch (q->query) {
  case 0: return query_engines(q);
  case 1: return query_memory(q, gpu());
  case 2: return query_config(q, gpu());
  case 3: return query_gts(q, gpu());
  case 4: return answer(q, NULL, 0); // what else the firmware knows: nothing
  case 5: return query_topology(q, gpu());
  case 7: return query_firmware(q);
  }
  errno = EINVAL;
  return -1;
}

static int version(void *arg) {
  struct { int major, minor, patch; struct { size_t length; char *text; } name, date, description; } *v = arg;
  v->major = v->minor = 1;
  v->patch = 0;
  if (v->name.text && v->name.length >= 2) memcpy(v->name.text, "xe", 2);
  v->name.length = 2;
  v->date.length = v->description.length = 0;
  return 0;
}

// What is not named succeeds and does nothing. Handles and identifiers count up; an object's place
// in the file is found by its handle.
static int done(unsigned number, void *arg) {
  static _Atomic uint32_t last;
  static _Atomic uint64_t end = 1 << 20, places[1 << 16];
  uint32_t *words = arg;
  uint64_t *longs = arg;
  switch (number) {
  case 0x00: return version(arg);
  case 0x0c: longs[1] = 1; break; // DRM_IOCTL_GET_CAP
  case 0x40: return query(arg);
  case 0x41: // XE_GEM_CREATE: size, .. handle
    words[7] = ++last;
    places[words[7] & 0xffff] = end;
    end += (longs[1] + 65535) & ~65535ull;
    break;
  case 0x42: longs[2] = places[words[2] & 0xffff]; break; // XE_GEM_MMAP_OFFSET
  case 0x43: words[3] = ++last; break;                    // XE_VM_CREATE
  case 0x46: words[5] = ++last; break;                    // XE_EXEC_QUEUE_CREATE
  case 0xbf: words[0] = ++last; break;                    // SYNCOBJ_CREATE
  }
  return 0;
}

int ioctl(int fd, unsigned long request, ...) {
  static int (*next)(int, unsigned long, ...);
  va_list more;
  va_start(more, request);
  void *arg = va_arg(more, void *);
  va_end(more);
  if (_IOC_TYPE(request) == 'd' && ours(fd)) return done(_IOC_NR(request), arg);
  if (!next) next = dlsym(RTLD_NEXT, "ioctl");
  return next(fd, request, arg);
}
