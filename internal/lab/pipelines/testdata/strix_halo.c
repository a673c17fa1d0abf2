// Makes a Strix Halo (gfx1151) of the Strix Point (gfx1150) among the GPUs of Mesa's stand-in for
// Linux's amdgpu driver: a library to preload before it. RADV's compiler knows both; the stand-in
// lacks the first. AMDGPU_GPU_ID is strix1 then.
//
// Built and used by scripts/with-mesa radv strix_halo. Fields and numbers are those of Linux's
// amdgpu_drm.h and of its driver: device 1586, revision 0xc1 of the family of gfx11.5, 40 compute
// units in two engines of two arrays.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

struct info { // the first fields of drm_amdgpu_info_device
  uint32_t device, chip_rev, external_rev, pci_rev, family, engines, arrays, counter_freq;
  uint64_t engine_clock, memory_clock;
  uint32_t units, ao_mask, bitmap[4][4];
};

enum { device = 0x150e, family = 150, table = 65536 }; // table: bytes to search, less than all

__attribute__((constructor)) static void become(void) {
  char *devices = dlsym(RTLD_DEFAULT, "amdgpu_devices");
  for (int i = 0; devices && i < table; i += 8) {
    struct info *x = (struct info *)(devices + i);
    if (x->device != device || x->family != family)
      continue;
    uintptr_t page = (uintptr_t)x & ~(uintptr_t)4095;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE)) {
      perror("strix_halo: mprotect");
      exit(1);
    }
    x->device = 0x1586;
    x->external_rev = 0xc1;
    x->engines = x->arrays = 2;
    x->units = 40;
    for (int at = 0; at < 16; at++)
      x->bitmap[at / 4][at % 4] = at / 4 < 2 && at % 4 < 2 ? 0x3ff : 0;
    return;
  }
  fprintf(stderr, "strix_halo: no Strix Point to start from\n");
  exit(1);
}
