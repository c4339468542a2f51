/* Memory that a child makes and exports, relabelled by its receiver before it is imported: the mark on the descriptor says one byte. `relabel
 * ROUNDS 0` leaves the mark alone. Prints how many of the pieces of 48 MiB could be mapped; the child lets go of each before it makes the next. */
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

int main(int count, char **arguments) {
    int ends[2], rounds = atoi(arguments[1]), forge = atoi(arguments[2]), mapped = 0, descriptor;
    address room;
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
        if (forge) {
            struct flock mark = {.l_type = F_UNLCK};
            fcntl(descriptor, F_OFD_SETLK, &mark);
            mark = (struct flock){.l_type = F_RDLCK, .l_start = 1000000 + 10 * mapped, .l_len = 1};
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
