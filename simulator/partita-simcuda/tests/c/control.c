// The kernel driver's nodes: the requests to the real ones, sent to the simulated ones.
#include <errno.h>
#include <sys/ioctl.h>

#include "sim.h"

int partita_sim_control_open(const char *);
int partita_sim_control_ioctl(int, unsigned long, void *);
int partita_sim_control_close(int);

typedef struct { uint32_t root, parent, object, cls; uint64_t params; uint32_t size, status; } Alloc;
typedef struct { uint32_t root, parent, object, cls; uint64_t params, rights; uint32_t size, flags, status; } Alloc48;
typedef struct { uint32_t client, object, cmd, flags; uint64_t params; uint32_t size, status; } Control;
typedef struct { uint32_t root, parent, object, status; } Free;
typedef struct { uint32_t gpu, flags, device, subdevice, sli, board, instance; int32_t numa; } IdInfo;
typedef struct { uint32_t device, a, b, c, flags, pad; uint64_t x, y, z; uint32_t mode, pad2; } Device;

static int ctl, gpu;
static uint32_t client;

static uint32_t alloc(uint32_t parent, uint32_t *object, uint32_t cls, void *params, uint32_t size) {
    Alloc a = {client, parent, *object, cls, (uintptr_t)params, size, 99};
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 0x2b, Alloc), &a), 0);
    *object = a.object;
    return a.status;
}

static uint32_t control(uint32_t object, uint32_t cmd, void *params, uint32_t size) {
    Control c = {client, object, cmd, 0, (uintptr_t)params, size, 99};
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 0x2a, Control), &c), 0);
    return c.status;
}

static uint32_t release(uint32_t parent, uint32_t object) {
    Free f = {client, parent, object, 99};
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 0x29, Free), &f), 0);
    return f.status;
}

#define SUBDEVICE 0xcaf10002u

// Everything up to the subdevice.
static void connect_gpu(void) {
    ctl = partita_sim_control_open("/dev/nvidiactl");
    gpu = partita_sim_control_open("/dev/nvidia0");
    TRUE(ctl >= 0 && gpu >= 0 && ctl != gpu);
    EQ(partita_sim_control_ioctl(gpu, _IOWR('F', 201, int), &ctl), 0);
    client = 0;
    EQ(alloc(0, &client, 0, NULL, 0), 0);
    TRUE(client >= 0xc1d00000u);
    uint32_t ids[32];
    EQ(control(client, 0x201, ids, sizeof ids), 0);
    TRUE(ids[0] != ~0u);
    IdInfo info = {.gpu = ids[0]};
    EQ(control(client, 0x205, &info, sizeof info), 0);
    Device device = {.device = info.device};
    uint32_t handle = 0xcaf10001u, sub = SUBDEVICE;
    EQ(alloc(client, &handle, 0x80, &device, sizeof device), 0);
    EQ(alloc(handle, &sub, 0x2080, &info.subdevice, 4), 0);
}

static uint8_t order[9248];

// Prints the size that the driver takes, the counts, and a line for each TPC as for each SM; then the counts of GPCs.
static void sm_order(void) {
    // Neither a context nor cuInit is needed.
    connect_gpu();
    static const uint32_t sizes[] = {6168, 7192, 9240, 9248};
    uint32_t taken = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t status = control(SUBDEVICE, 0x2080121b, order, sizes[i]);
        if (status != 0) {
            EQ(status, 0x1f);
            continue;
        }
        EQ(taken, 0);
        taken = sizes[i];
    }
    int fields = taken == 9240 ? 9 : taken == 7192 ? 7 : 6;
    uint16_t *words = (uint16_t *)order, *counts = words + 512 * fields;
    printf("%u %u %u\n", taken, counts[0], counts[1]);
    int per_tpc = counts[0] / counts[1];
    for (int sm = 0; sm < counts[0]; sm++) {
        uint16_t *e = words + sm * fields;
        EQ(e[2], sm % per_tpc);
        if (e[2]) continue;
        printf("%d", sm);
        for (int field = 0; field < fields; field++)
            if (field != 2) printf(" %u", e[field]);
        printf("\n");
    }
    for (uint32_t gpc = 0; gpc < 9; gpc++) {
        uint32_t count[2] = {gpc, 0}, mask[6] = {0, 0, 0, 0, gpc, 99};
        uint32_t status = control(SUBDEVICE, 0x20801234, count, 8);
        EQ(control(SUBDEVICE, 0x2080122b, mask, 24), 0);
        if (status) EQ(status, 0x1f);
        printf("gpc %u %u %x\n", gpc, count[1], mask[5]);
    }
    uint32_t mask[6] = {0, 0, 0, 0, 99, 0};
    EQ(control(SUBDEVICE, 0x2080122a, mask, 24), 0);
    EQ(mask[4], 0);
    static uint8_t fs[3080] = {1, 0, 0, 0, 0, 0, 0, 0, 1};
    EQ(control(SUBDEVICE, 0x20803801, fs, sizeof fs), 0x1f);
    EQ(release(client, client), 0);
    EQ(partita_sim_control_close(gpu), 0);
    EQ(partita_sim_control_close(ctl), 0);
}

static void cards(void) {
    int node = partita_sim_control_open("/dev/nvidiactl");
    uint8_t list[32][72];
    memset(list, 0xee, sizeof list);
    EQ(partita_sim_control_ioctl(node, _IOWR('F', 200, list), list), 0);
    EQ(list[0][0], 1);
    EQ(list[1][0], 0);
    uint32_t id, minor, bus = list[0][8];
    memcpy(&id, &list[0][16], 4);
    memcpy(&minor, &list[0][56], 4);
    EQ(minor, 0);
    EQ(id, bus << 8);
    TRUE(list[0][12] == 0xde && list[0][13] == 0x10);
    // As CUDA names the place.
    start();
    char text[32];
    OK(cuDeviceGetPCIBusId(text, sizeof text, 0));
    unsigned domain, named, slot;
    TRUE(sscanf(text, "%x:%x:%x", &domain, &named, &slot) == 3);
    EQ(domain, 0);
    EQ(named, bus);
    EQ(slot, list[0][9]);
    // The GPU's node is not open.
    ctl = node, client = 0;
    EQ(alloc(0, &client, 0, NULL, 0), 0);
    uint32_t ids[32];
    EQ(control(client, 0x201, ids, sizeof ids), 0);
    EQ(ids[0], ~0u);
    IdInfo info = {.gpu = id};
    EQ(control(client, 0x205, &info, sizeof info), 0x1f);
}

static void refusals(void) {
    EQ(partita_sim_control_open("/dev/nvidia7"), -ENOENT);
    EQ(partita_sim_control_open("/dev/null"), -ENOENT);
    EQ(partita_sim_control_open("/dev/nvidiax"), -ENOENT);
    EQ(partita_sim_control_close(77), -EBADF);
    int wild = 99;
    connect_gpu();
    EQ(partita_sim_control_ioctl(77, _IOWR('F', 201, int), &ctl), -EBADF);
    EQ(partita_sim_control_ioctl(gpu, _IOWR('F', 201, int), &ctl), -EINVAL);
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 201, int), &ctl), -EINVAL);
    int other = partita_sim_control_open("/dev/nvidia0");
    EQ(partita_sim_control_ioctl(other, _IOWR('F', 201, int), &wild), -EINVAL);
    EQ(partita_sim_control_ioctl(other, _IOWR('F', 201, int), &gpu), -EINVAL);
    Alloc a = {0};
    EQ(partita_sim_control_ioctl(gpu, _IOWR('F', 0x2b, Alloc), &a), -EINVAL);
    EQ(partita_sim_control_ioctl(ctl, _IOWR('G', 0x2b, Alloc), &a), -EINVAL);
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 0x2b, int), &a), -EINVAL);
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 0x7f, Alloc), &a), -EINVAL);
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 0x2b, Alloc), (void *)16), -EFAULT);
    uint8_t few[72];
    EQ(partita_sim_control_ioctl(ctl, _IOC(3, 'F', 200, 71), few), -EINVAL);
    // Objects.
    uint32_t none = 0, again = client, taken = SUBDEVICE, zero = 0;
    EQ(alloc(client, &none, 0x1234, NULL, 0), 0x22);
    EQ(alloc(0, &again, 0, NULL, 0), 0x19);
    EQ(alloc(0xcaf10001u, &taken, 0x2080, &zero, 4), 0x19);
    EQ(alloc(client, &none, 0x2080, &zero, 4), 0x36);
    EQ(alloc(0xbadu, &none, 0x2080, &zero, 4), 0x57);
    Device second = {.device = 5};
    EQ(alloc(client, &none, 0x80, &second, sizeof second), 0x1f);
    EQ(alloc(client, &none, 0x80, &second, 4), 0x1f);
    Device first = {0};
    EQ(alloc(client, &none, 0x80, (void *)16, sizeof first), 0x1e);
    Alloc48 longer = {client, client, 0xcaf10005u, 0x80, (uintptr_t)&first, 0, sizeof first, 0, 99};
    EQ(partita_sim_control_ioctl(ctl, _IOWR('F', 0x2b, Alloc48), &longer), 0);
    EQ(longer.status, 0);
    // Commands.
    uint32_t mask[6] = {0};
    EQ(control(SUBDEVICE, 0x2080ffff, mask, 24), 0x56);
    EQ(control(client, 0x2080122a, mask, 24), 0x56);
    EQ(control(0xcaf10001u, 0x2080122a, mask, 24), 0x56);
    EQ(control(0xbadu, 0x2080122a, mask, 24), 0x57);
    EQ(control(SUBDEVICE, 0x2080122a, mask, 23), 0x1f);
    EQ(control(SUBDEVICE, 0x2080122a, (void *)16, 24), 0x1e);
    // A device takes its subdevice along, a client everything, and a node its clients.
    EQ(release(client, 0xcaf10001u), 0);
    EQ(control(SUBDEVICE, 0x2080122a, mask, 24), 0x57);
    EQ(release(client, 0xcaf10001u), 0x57);
    EQ(release(client, client), 0);
    EQ(control(client, 0x201, order, 128), 0x23);
    client = 0;
    EQ(alloc(0, &client, 0x41, NULL, 0), 0);
    int elsewhere = partita_sim_control_open("/dev/nvidiactl"), first_ctl = ctl;
    ctl = elsewhere;
    EQ(control(client, 0x201, order, 128), 0x23);
    EQ(partita_sim_control_close(first_ctl), 0);
    EQ(partita_sim_control_close(first_ctl), -EBADF);
    uint32_t same = client;
    client = 0;
    EQ(alloc(0, &same, 0, NULL, 0), 0);
}

CASES({"sm_order", sm_order}, {"cards", cards}, {"refusals", refusals})
