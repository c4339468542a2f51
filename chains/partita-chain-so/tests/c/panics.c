/* A component whose library panics, which is a bug: the call fails, and so do those after it; the program is not ended, and nothing is printed. */
#include "partita_chain.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Only in the library that the tests build. */
int partita_chain_panic(partita_component *component);

#define CHECK(condition)                                                                                             \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			printf("line %d: %s: %s\n", __LINE__, #condition, partita_chain_error());                   \
			return 1;                                                                                    \
		}                                                                                                    \
	} while (0)

/* What a thread calls at its very end finds nothing of the library's left there: an error of that call as well. */
static int at_the_end = 0;

static void last_call(void *key)
{
	partita_component *component = NULL;
	(void)key;
	at_the_end = partita_chain_attach_to(&component, "/nonexistent/chain", "0", 0);
}

static void *thread(void *key)
{
	partita_component *component = NULL;
	pthread_setspecific(*(pthread_key_t *)key, key);
	return partita_chain_attach_to(&component, "/nonexistent/chain", "0", 0) == PARTITA_CHAIN_FAILED ? key : NULL;
}

static int ends_in_a_call(void)
{
	pthread_key_t key;
	pthread_t ending;
	void *done = NULL;
	CHECK(pthread_key_create(&key, last_call) == 0);
	CHECK(pthread_create(&ending, NULL, thread, &key) == 0 && pthread_join(ending, &done) == 0);
	CHECK(done == &key && at_the_end == PARTITA_CHAIN_FAILED);
	return 0;
}

int main(void)
{
	partita_component *component;
	partita_frame *frame;

	CHECK(ends_in_a_call() == 0);
	CHECK(partita_chain_attach(&component) == PARTITA_CHAIN_OK);
	CHECK(partita_chain_receive(component, PARTITA_CHAIN_FOREVER, &frame) == PARTITA_CHAIN_OK);
	CHECK(partita_chain_panic(component) == PARTITA_CHAIN_FAILED);
	CHECK(strstr(partita_chain_error(), "component Some(0) panics because it was asked to") != NULL);
	CHECK(strstr(partita_chain_error(), "lib.rs") != NULL);

	CHECK(partita_chain_role(component) == PARTITA_CHAIN_FAILED);
	CHECK(strstr(partita_chain_error(), "earlier call") != NULL && strstr(partita_chain_error(), "asked to") != NULL);
	CHECK(partita_frame_address(frame) == 0 && partita_frame_meta(frame) == NULL);
	CHECK(partita_chain_send(component, frame, 0) == PARTITA_CHAIN_FAILED);
	CHECK(partita_chain_attach(&component) == PARTITA_CHAIN_FAILED);
	CHECK(partita_chain_detach(component) == PARTITA_CHAIN_FAILED);
	return 0;
}
