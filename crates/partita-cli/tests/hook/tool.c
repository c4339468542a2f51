/* A profiler in the program: it uses the driver's callback table in every order, wrong ones too.
 * Prints each answer, so that a run bare and a run in a tenant can be compared, and at the end
 * where its launches ran. */
#include "census.h"
#include <sys/wait.h>
#include <unistd.h>

typedef void (*callback)(void *, int, int, const void *);
struct table {
    size_t bytes;
    void *domains;
    int (*count)(size_t *, void **, int);
    int (*subscribe)(unsigned *, callback, void *);
    int (*unsubscribe)(unsigned);
    int (*state)(unsigned *, unsigned, int, int);
    int (*enable)(unsigned, unsigned, int, int);
    int (*enable_domain)(unsigned, unsigned, int);
    int (*enable_all)(unsigned, unsigned);
    int (*declare)(unsigned, unsigned, unsigned);
    void *features;
    int (*subscribe_named)(unsigned *, callback, void *, const char *, char *, size_t);
};

enum { DRIVER_API = 6, LAUNCHES = 0xb, LAUNCH_KERNEL = 307, DESCRIPTOR_READY = 1 };

static struct table *table;
static unsigned calls, descriptors, foreign, leave;
static int left = -1;

static void on_call(void *user, int domain, int id, const void *parameters) {
    (void)parameters;
    if (user != &calls) foreign++;
    if (domain == DRIVER_API && id == LAUNCH_KERNEL) calls++;
    else if (domain == LAUNCHES && id == DESCRIPTOR_READY) descriptors++;
    if (leave) {
        leave = 0;
        left = table->unsubscribe(1);
    }
}

static void on_other(void *user, int domain, int id, const void *parameters) {
    (void)user; (void)domain; (void)id; (void)parameters;
    foreign++;
}

static void *census, *stream, *parameters[2];

static void launch(const char *when) {
    calls = descriptors = 0;
    OK("cuLaunchKernel", CALL(fn_launch, "cuLaunchKernel")(census, 64, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    wait_all();
    printf("%s: calls %u descriptors %u foreign %u\n", when, calls, descriptors, foreign);
}

static unsigned state_of(int domain, int id) {
    unsigned on = 77;
    int code = table->state(&on, 1, domain, id);
    return code ? 1000 + (unsigned)code : on;
}

int main(int count, char **arguments) {
    static const unsigned char id[16] = {0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e, 0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b};
    static const unsigned char unknown[16] = {1, 2, 3};
    int (*get)(void **, const void *) = CALL(int (*)(void **, const void *), "cuGetExportTable");
    void *other = &table;
    unsigned handle = 0;
    char holder[8];
    int early = count > 2 && !strcmp(arguments[2], "early");

    /* An injected tool subscribes before the process has attached to its tenant. */
    if (early) {
        printf("table %d\n", get((void **)&table, id));
        printf("subscribe %d\n", table->subscribe_named(&handle, on_call, &calls, "early tool", NULL, 0));
    }
    start(1);
    if (!early) {
        printf("table %d\n", get((void **)&table, id));
        printf("subscribe %d\n", table->subscribe(&handle, on_call, &calls));
    }
    printf("unknown table %d\n", get(&other, unknown));
    printf("handle %u bytes %zx\n", handle, table->bytes);

    census = load_census(kernels_in(arguments[1]));
    stream = new_stream(0);
    address records = new_records(64);
    uint64_t duration = 30000;
    parameters[0] = &records;
    parameters[1] = &duration;
    clear_records(records, 64);

    printf("second %d %d\n", table->subscribe(&handle, on_other, NULL), table->subscribe_named(&handle, on_other, NULL, "x", holder, sizeof holder));
    printf("holder %s\n", holder);
    printf("null %d\n", table->subscribe(NULL, on_other, NULL));
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    printf("long name %d\n", table->subscribe_named(&handle, on_other, NULL, name, NULL, 0));
    launch("nothing on");
    printf("on %d %d\n", table->enable(1, 1, DRIVER_API, LAUNCH_KERNEL), table->enable(1, 1, LAUNCHES, DESCRIPTOR_READY));
    printf("state %u %u %u\n", state_of(DRIVER_API, LAUNCH_KERNEL), state_of(LAUNCHES, DESCRIPTOR_READY), state_of(LAUNCHES, 0));
    launch("both on");
    printf("off %d\n", table->enable(0, 1, LAUNCHES, DESCRIPTOR_READY));
    printf("state %u\n", state_of(LAUNCHES, DESCRIPTOR_READY));
    launch("descriptors off");
    printf("domain on %d off %d\n", table->enable_domain(1, 1, LAUNCHES), table->enable_domain(0, 1, DRIVER_API));
    launch("domain of launches on");
    printf("domain off %d\n", table->enable_domain(0, 1, LAUNCHES));
    launch("domain of launches off");
    printf("all off %d\n", table->enable_all(0, 1));
    launch("all off");
    printf("wrong %d %d %d %d %d %d\n", table->enable(1, 2, DRIVER_API, 1), table->enable(1, 1, 31, 0),
           table->enable(1, 1, LAUNCHES, 4), table->enable_domain(1, 2, LAUNCHES), table->enable_domain(0, 1, 31), table->enable_all(0, 2));
    printf("states wrong %u %u\n", state_of(31, 0), state_of(LAUNCHES, 4));
    printf("declare %d %d %d %d\n", table->declare(1, 1, 7), table->declare(0, 1, 7), table->declare(1, 2, 7), table->declare(1, 1, 11));
    printf("unsubscribe wrong %d\n", table->unsubscribe(2));
    printf("on %d\n", table->enable(1, 1, DRIVER_API, LAUNCH_KERNEL));

    /* A child shares nothing with its parent's subscription but the memory. */
    pid_t child = fork();
    if (child == 0) _exit(table->unsubscribe(1) == 0 && table->unsubscribe(1) == 999 ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    printf("child %d\n", status);

    leave = 1;
    launch("unsubscribes in the callback");
    printf("left %d\n", left);
    launch("without a subscriber");
    printf("unsubscribe twice %d\n", table->unsubscribe(1));
    printf("again %d\n", table->subscribe_named(&handle, on_call, &calls, "again", NULL, 0));
    printf("state %u %u\n", state_of(DRIVER_API, LAUNCH_KERNEL), state_of(LAUNCHES, DESCRIPTOR_READY));
    printf("all on %d\n", table->enable(1, 1, LAUNCHES, DESCRIPTOR_READY));
    launch("again");
    printf("unsubscribe %d\n", table->unsubscribe(1));
    printf("ran");
    print_sms(records, 64);
    return 0;
}
