/* Threads that launch without pause by every kind of stream, by graphs and in two contexts, while the test moves the
 * tenant between two sets of TPCs: below the number given, and from it on. Arguments: the file with the kernels, that
 * number, SMs of a TPC. Prints `ready`, and when its input ends a line a route: launches, launches whose blocks ran in
 * both sets, moves seen, and the set of one launch more. */
#include "census.h"
#include <pthread.h>

enum { BLOCKS = 64 };
static unsigned boundary, sms_per_tpc;
static volatile int stop;

struct route {
    const char *name;
    fn_launch launch;
    int (*graph_launch)(void *, void *);
    void *context, *function, *stream, *graph;
    address records;
    uint64_t duration;
    long launches, mixed, moves;
    int last;
    pthread_t thread;
};

/* The set that one launch ran in, -1 for both. */
static int one(struct route *route) {
    static __thread record host[BLOCKS];
    void *parameters[2] = {&route->records, &route->duration};
    if (route->graph) OK(route->name, route->graph_launch(route->graph, route->stream));
    else OK(route->name, route->launch(route->function, BLOCKS, 1, 1, 64, 1, 1, 0, route->stream, parameters, NULL));
    wait_all();
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, route->records, sizeof host));
    int sets = 0;
    for (unsigned block = 0; block < BLOCKS; block++) {
        if (host[block][3] != block + 1) die("a block left no record", (int)block);
        sets |= host[block][0] / sms_per_tpc < boundary ? 1 : 2;
    }
    return sets == 3 ? -1 : sets - 1;
}

static void *work(void *argument) {
    struct route *route = argument;
    int before = -1;
    OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(route->context));
    while (!stop) {
        int now = one(route);
        route->launches++;
        route->mixed += now < 0;
        route->moves += now != before;
        before = now;
    }
    route->last = one(route);
    return NULL;
}

static void prepare(struct route *route, const char *kernels) {
    OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(route->context));
    route->function = load_census(kernels);
    route->records = new_records(BLOCKS);
    route->duration = 3000;
}

static void graph_of(struct route *route) {
    void *parameters[2] = {&route->records, &route->duration}, *graph = new_graph();
    add_node(graph, NULL, route->function, BLOCKS, 64, parameters);
    route->graph = instantiate_and_drop(graph);
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    const char *kernels = kernels_in(arguments[1]);
    boundary = (unsigned)atoi(arguments[2]);
    sms_per_tpc = (unsigned)atoi(arguments[3]);

    start(1);
    void *other;
    OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&other, 0, 0));
    static struct route routes[] = {{"stream"}, {"default"}, {"per-thread"}, {"graph"}, {"per-thread-graph"}, {"context"}};
    enum { ROUTES = sizeof routes / sizeof *routes };
    for (int i = 0; i < ROUTES; i++) {
        routes[i].launch = CALL(fn_launch, "cuLaunchKernel");
        routes[i].graph_launch = CALL(int (*)(void *, void *), "cuGraphLaunch");
        routes[i].context = i == 5 ? other : context;
        prepare(&routes[i], kernels);
    }
    routes[2].launch = (fn_launch)by_version("cuLaunchKernel", 12000, 2);
    routes[4].graph_launch = (int (*)(void *, void *))by_version("cuGraphLaunch", 12000, 2);
    graph_of(&routes[3]);
    graph_of(&routes[4]);
    for (int i = 0; i < ROUTES; i++) {
        OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(routes[i].context));
        if (i == 0 || i == 3 || i == 5) routes[i].stream = new_stream(1);
    }
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < ROUTES; i++) pthread_create(&routes[i].thread, NULL, work, &routes[i]);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    stop = 1;
    for (int i = 0; i < ROUTES; i++) {
        pthread_join(routes[i].thread, NULL);
        printf("%s %ld %ld %ld %d\n", routes[i].name, routes[i].launches, routes[i].mixed, routes[i].moves, routes[i].last);
    }
    return 0;
}
