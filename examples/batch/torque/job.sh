#!/bin/sh
#PBS -l nodes=1:gpus=1
#PBS -A partita:mps
# A prologue cannot change the environment of its job, so the job reads it. On an error the job ends here with the reason.
eval "$(partita batch task-prolog --format sh)"

exec ./program
