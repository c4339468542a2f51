/*
 * The published interface (facts, not the original's text), which a program
 * that was written for the original uses. Programs compiled with these
 * prototypes run on this library.
 */
#ifndef PUBLISHED_H
#define PUBLISHED_H

#include <stdbool.h>
#include <stdint.h>

typedef unsigned __int128 uint128_t;

extern void libsmctrl_set_global_mask(uint64_t mask);
extern void libsmctrl_set_next_mask(uint64_t mask);
extern void libsmctrl_set_stream_mask(void *stream, uint64_t mask);
extern void libsmctrl_set_stream_mask_ext(void *stream, uint128_t mask);
extern int libsmctrl_get_gpc_info(uint32_t *num_enabled_gpcs, uint64_t **tpcs_for_gpc, int dev);
extern int libsmctrl_get_gpc_info_ext(uint32_t *num_enabled_gpcs, uint128_t **tpcs_for_gpc, int dev);
extern int libsmctrl_get_tpc_info(uint32_t *num_tpcs, int dev);
extern int libsmctrl_get_tpc_info_cuda(uint32_t *num_tpcs, int cuda_dev);

#endif
