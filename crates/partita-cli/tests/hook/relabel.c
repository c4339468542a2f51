/* What descriptors of memory do for a program that sets out to be charged too little. The tenant's pieces have 48 MiB.
 * `relabel ROUNDS 0|1|2`: a child makes and exports pieces; the receiver leaves the mark on the descriptor alone (0), has it say one byte (1), or
 * puts the first piece's mark on all (2), before it imports. Prints how many could be mapped; the child lets go of each before it makes the next.
 * `relabel ROUNDS 3`: pieces that are exported and released while their descriptors stay open. Prints how many could be made, the MiB that are
 * charged for them, and how many could be imported again. */
#include "cuda.h"
#include <fcntl.h>
#include <sys/socket.h>

#define PIECE ((size_t)48 << 20)

typedef struct { unsigned type, handle_types, location_type; int location; void *win32; unsigned char rest[8]; } property;

static void pass(int to, int descriptor) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(to, &message, 0) != 1) die("sendmsg", -1);
}

static int passed(int from) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int descriptor;
    if (recvmsg(from, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) return -1;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static int make(int socket, int rounds) {
    static const property wanted = {.type = 1, .handle_types = 1, .location_type = 1};
    uint64_t memory;
    int descriptor;
    char byte;
    start(0);
    for (int round = 0; round < rounds; round++) {
        if (CALL(int (*)(uint64_t *, size_t, const property *, uint64_t), "cuMemCreate")(&memory, PIECE, &wanted, 0)) break;
        OK("export", CALL(int (*)(void *, uint64_t, unsigned, uint64_t), "cuMemExportToShareableHandle")(&descriptor, memory, 1, 0));
        pass(socket, descriptor);
        close(descriptor);
        if (read(socket, &byte, 1) != 1) return 1;
        OK("release", CALL(int (*)(uint64_t), "cuMemRelease")(memory));
    }
    return 0;
}

/* The range of the mark on a descriptor. */
static struct flock mark_of(int descriptor) {
    char path[64], line[256];
    unsigned long long start = 0, end = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", descriptor);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "lock: %*s OFDLCK ADVISORY %*s %*s %*s %llu %llu", &start, &end);
    if (!end) die("no mark", descriptor);
    fclose(file);
    return (struct flock){.l_type = F_RDLCK, .l_start = (off_t)start, .l_len = (off_t)(end - start + 1)};
}

static int keep_behind_descriptors(int rounds) {
    static const property wanted = {.type = 1, .handle_types = 1, .location_type = 1};
    int *descriptors = calloc((size_t)rounds, sizeof *descriptors), made = 0, imported = 0;
    start(0);
    size_t before = free_bytes();
    for (; made < rounds; made++) {
        uint64_t memory;
        if (CALL(int (*)(uint64_t *, size_t, const property *, uint64_t), "cuMemCreate")(&memory, PIECE, &wanted, 0)) break;
        OK("export", CALL(int (*)(void *, uint64_t, unsigned, uint64_t), "cuMemExportToShareableHandle")(&descriptors[made], memory, 1, 0));
        OK("release", CALL(int (*)(uint64_t), "cuMemRelease")(memory));
    }
    size_t charged = before - free_bytes();
    for (; imported < made; imported++) {
        uint64_t memory;
        if (CALL(int (*)(uint64_t *, void *, unsigned), "cuMemImportFromShareableHandle")(&memory, (void *)(long)descriptors[imported], 1)) break;
    }
    printf("%d %zu %d\n", made, charged >> 20, imported);
    return 0;
}

int main(int count, char **arguments) {
    int ends[2], rounds = atoi(arguments[1]), forge = atoi(arguments[2]), mapped = 0, descriptor;
    address room;
    struct flock first = {0};
    if (forge == 3) return keep_behind_descriptors(rounds);
    if (count != 3 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) return 1;
    if (fork() == 0) {
        close(ends[0]);
        return make(ends[1], rounds);
    }
    close(ends[1]);
    start(0);
    OK("addresses", CALL(int (*)(address *, size_t, size_t, address, uint64_t), "cuMemAddressReserve")(&room, rounds * PIECE, 0, 0, 0));
    while ((descriptor = passed(ends[0])) >= 0) {
        uint64_t memory;
        if (forge == 2 && !first.l_len) first = mark_of(descriptor);
        else if (forge) {
            struct flock mark = {.l_type = F_UNLCK};
            fcntl(descriptor, F_OFD_SETLK, &mark);
            mark = forge == 2 ? first : (struct flock){.l_type = F_RDLCK, .l_start = 1000000 + 10 * mapped, .l_len = 1};
            if (fcntl(descriptor, F_OFD_SETLK, &mark)) {
                mark.l_type = F_WRLCK;
                OK("relabel", fcntl(descriptor, F_OFD_SETLK, &mark));
            }
        }
        if (!CALL(int (*)(uint64_t *, void *, unsigned), "cuMemImportFromShareableHandle")(&memory, (void *)(long)descriptor, 1)) {
            if (!CALL(int (*)(address, size_t, size_t, uint64_t, uint64_t), "cuMemMap")(room + mapped * PIECE, PIECE, 0, memory, 0)) mapped++;
            OK("release", CALL(int (*)(uint64_t), "cuMemRelease")(memory));
        }
        close(descriptor);
        if (write(ends[0], "", 1) != 1) return 1;
    }
    wait(NULL);
    printf("%d\n", mapped);
    return 0;
}
