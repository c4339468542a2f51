/* What the parts of the stub driver share. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Makes a descriptor, with a mask of the program's own if there is one, and shows it to the subscriber. */
void stub_build(uint32_t *qmd, const uint32_t *own_mask);
void stub_show(uint32_t *qmd);
