/*
 * libsmctrl as the paper prints it: "Hardware Compute Partitioning on NVIDIA
 * GPUs", RTAS 2023, table I and listings 1 and 2. Its listings compile with
 * this header as they stand.
 *
 *     cc listing.c -lsmctrl -lcuda
 *
 * Include it in the place of libsmctrl.h. What differs from the library that
 * the paper's authors published, and from libsmctrl.h:
 *   - A set bit of the mask of a stream or of the next launch ENABLES a TPC. A
 *     set bit of the global mask DISABLES one, as in listing 1. So an enabling
 *     mask of 0, which would leave no TPC, is refused.
 *   - Masks have 64 bits, and the GPU is the first one. On a GPU with more than
 *     64 TPCs an enabling mask cannot name the TPCs from 63 on one by one:
 *     bit 63 stands for all of them. libsmctrl_get_gpc_info() fails there.
 *   - libsmctrl_get_gpc_info() and libsmctrl_get_tpc_info() fill in a struct.
 */
#ifndef PARTITA_LIBSMCTRL_PAPER_H
#define PARTITA_LIBSMCTRL_PAPER_H

#include "libsmctrl.h"

/* The most GPCs of any GPU that libsmctrl knows. */
#define LIBSMCTRL_PAPER_GPCS_MAX 32

struct gpc_info {
    uint32_t num_gpcs;
    /* Bit i of entry g: TPC i is of GPC g. */
    unsigned long long gpc_tpc_masks[LIBSMCTRL_PAPER_GPCS_MAX];
};

struct tpc_info {
    uint32_t num_tpcs;
};

static inline void libsmctrl_paper_set_stream_mask(void *stream, unsigned long long enabled)
{
    libsmctrl_set_stream_mask(stream, ~enabled);
}

static inline void libsmctrl_paper_set_next_mask(unsigned long long enabled)
{
    libsmctrl_set_next_mask(~enabled);
}

/* 0, or a number of <errno.h> and no GPC. */
static inline int libsmctrl_paper_get_gpc_info(struct gpc_info *info)
{
    uint32_t count = 0;
    uint64_t *masks = 0;
    info->num_gpcs = 0;
    int error = libsmctrl_get_gpc_info(&count, &masks, 0);
    if (error)
        return error;
    for (uint32_t gpc = 0; gpc < count && gpc < LIBSMCTRL_PAPER_GPCS_MAX; gpc++)
        info->gpc_tpc_masks[info->num_gpcs++] = masks[gpc];
    return 0;
}

/* 0, or a number of <errno.h> and no TPC. */
static inline int libsmctrl_paper_get_tpc_info(struct tpc_info *info)
{
    info->num_tpcs = 0;
    return libsmctrl_get_tpc_info(&info->num_tpcs, 0);
}

#define libsmctrl_set_stream_mask libsmctrl_paper_set_stream_mask
#define libsmctrl_set_next_mask libsmctrl_paper_set_next_mask
#define libsmctrl_get_gpc_info libsmctrl_paper_get_gpc_info
#define libsmctrl_get_tpc_info libsmctrl_paper_get_tpc_info

#endif
