#!/bin/sh
#PBS -l nodes=1:gpus=1
#PBS -A partita:mps
# A prologue cannot change the environment of its job, so the job reads it. With an error the job ends here and says why.
eval "$(partita batch task-prolog --format sh)"

exec ./program
