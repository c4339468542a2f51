/* Linked against the driver. Says what it answers, "0 0" where all is well. */
#include <stdio.h>

int cuInit(unsigned);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(void) {
    int initialised = cuInit(0);
    printf("%d %d\n", initialised, cuLaunchKernel((void *)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    return 0;
}
