/* What a program may tell Partita of itself. The program needs no library of Partita's: the functions are in
 * libpartita.so, which is in the processes of a tenant alone, so each is a null pointer elsewhere. Link dynamically. */
#ifndef PARTITA_H
#define PARTITA_H

#ifdef __cplusplus
extern "C" {
#endif

/* A step of the program has ended, and the next one begins. `partita ps` and targets (`--slo step-p99=40ms`) use the
 * time between two calls, of any thread of the process. Takes some 40 ns.
 *
 *     if (partita_step) partita_step();
 */
__attribute__((weak)) void partita_step(void);

#ifdef __cplusplus
}
#endif

#endif
