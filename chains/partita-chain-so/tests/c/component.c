/* A component in C, first, middle or last: what each leaves in a frame the last one finds, and what must be refused is. */
#include "partita_chain.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in cuda.h. */
int cuMemsetD8Async(unsigned long long at, unsigned char value, size_t count, void *stream);

#define BYTES 4096
#define FRAMES 10

#define CHECK(condition)                                                                                             \
	do {                                                                                                         \
		if (!(condition)) {                                                                                  \
			fprintf(stderr, "component %d, line %d: %s: %s\n", role, __LINE__, #condition,              \
				partita_chain_error());                                                              \
			exit(1);                                                                                     \
		}                                                                                                    \
	} while (0)

static int role = -1;

static void refusals(partita_component *component, partita_frame *frame)
{
	partita_frame *other = NULL;
	CHECK(partita_chain_attach(NULL) == PARTITA_CHAIN_MISUSE);
	CHECK(partita_chain_attach_to(&component, "/nonexistent/chain", "0", 0) == PARTITA_CHAIN_FAILED);
	CHECK(strstr(partita_chain_error(), "/nonexistent/chain") != NULL);
	/* A path is whatever bytes it has. */
	CHECK(partita_chain_attach_to(&component, "/nonexistent/ch\344in", "0", 0) == PARTITA_CHAIN_FAILED);
	CHECK(partita_chain_receive(NULL, 0, &other) == PARTITA_CHAIN_MISUSE);
	CHECK(partita_chain_receive((partita_component *)frame, 0, &other) == PARTITA_CHAIN_MISUSE);
	CHECK(partita_chain_send(component, NULL, 0) == PARTITA_CHAIN_MISUSE);
	CHECK(partita_chain_send(component, (partita_frame *)&other, 0) == PARTITA_CHAIN_MISUSE);
	CHECK(partita_chain_detach(component) == PARTITA_CHAIN_MISUSE);
	CHECK(strstr(partita_chain_error(), "still has frames") != NULL);
	CHECK(partita_frame_address(NULL) == 0 && partita_frame_meta(NULL) == NULL);
	CHECK(partita_frame_write(frame, NULL, 1) == PARTITA_CHAIN_MISUSE);
	CHECK(partita_chain_stream(NULL) == NULL);
}

/* A program may try again and again until its place is free: what comes to nothing leaves nothing behind. */
static void attempts(void)
{
	partita_component *component = NULL;
	size_t before = 0;
	for (int attempt = 0; attempt < 60; attempt++) {
		CHECK(partita_chain_attach_to(&component, "/nonexistent/chain", "0", 0) == PARTITA_CHAIN_FAILED);
		CHECK(partita_chain_attach_to(&component, "/nonexistent/chain", "0", 99) == PARTITA_CHAIN_FAILED);
		/* What the library and the driver have once, they have by then. */
		if (attempt == 9)
			before = mallinfo2().uordblks;
	}
	CHECK(component == NULL);
	CHECK(mallinfo2().uordblks < before + 16 * 1024);
}

int main(void)
{
	partita_component *component;
	partita_frame *frame;
	unsigned char bytes[BYTES];
	int got, frames = 0;

	attempts();
	CHECK(partita_chain_attach(&component) == PARTITA_CHAIN_OK);
	role = partita_chain_role(component);
	int last = partita_chain_roles(component) - 1;
	CHECK(role >= 0 && last == 2);

	while ((got = partita_chain_receive(component, PARTITA_CHAIN_FOREVER, &frame)) == PARTITA_CHAIN_OK) {
		uint64_t sequence = partita_frame_sequence(frame), *meta = partita_frame_meta(frame);
		CHECK(partita_frame_capacity(frame) == BYTES);
		if (role == 0) {
			memset(bytes, (int)(sequence + 7), BYTES);
			CHECK(partita_frame_write(frame, bytes, BYTES) == PARTITA_CHAIN_OK);
			CHECK(partita_frame_write(frame, bytes, BYTES + 1) == PARTITA_CHAIN_FAILED);
			meta[0] = sequence * 3;
			CHECK(partita_frame_set_bytes(frame, 100 + sequence) == PARTITA_CHAIN_OK);
		}
		CHECK(meta[0] == sequence * 3 && partita_frame_bytes(frame) == 100 + sequence);
		/* Each leaves its number in a place of its own. */
		CHECK(cuMemsetD8Async(partita_frame_address(frame) + 16 * (uint64_t)role, (unsigned char)(role + 1), 16,
				      partita_chain_stream(component)) == 0);
		if (sequence == 0)
			refusals(component, frame);
		if (role < last && sequence == 1) {
			/* Only the last one finishes frames; this one is gone with the try. */
			CHECK(partita_chain_finish(component, frame) == PARTITA_CHAIN_FAILED);
			CHECK(strstr(partita_chain_error(), "cannot finish") != NULL);
			CHECK(partita_chain_send(component, frame, 0) == PARTITA_CHAIN_MISUSE);
			continue;
		}
		if (role < last) {
			CHECK(partita_chain_send(component, frame, PARTITA_CHAIN_FOREVER) == PARTITA_CHAIN_OK);
			CHECK(partita_chain_send(component, frame, 0) == PARTITA_CHAIN_MISUSE);
			if (role == 0 && ++frames == FRAMES)
				break;
			continue;
		}
		CHECK(partita_frame_is_whole(frame) == 1);
		CHECK(partita_frame_read(frame, 0, bytes, BYTES) == PARTITA_CHAIN_OK);
		for (int at = 0; at < BYTES; at++)
			CHECK(bytes[at] == (at < 48 ? at / 16 + 1 : (unsigned char)(sequence + 7)));
		CHECK(partita_chain_finish(component, frame) == PARTITA_CHAIN_OK);
	}
	CHECK(got == PARTITA_CHAIN_OK || got == PARTITA_CHAIN_ENDED);
	CHECK(partita_chain_detach(component) == PARTITA_CHAIN_OK);
	CHECK(partita_chain_detach(component) == PARTITA_CHAIN_MISUSE);
	return 0;
}
