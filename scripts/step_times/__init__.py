"""The sources of published step times, a module each.

A module has SOURCES: the name of a table, and for it the source's file, the
function that converts a row of it, and where it is from. The function returns a
row of the table, several, or None for a row that the table cannot say.
"""

from step_times import (bridge, dgxc, flagperf, hybrid, internevo, jax, llama32,
                        llava, llm_foundry, long_sequences, loongforge, mimo,
                        mlperf, mosaic, nanotron, nemo, pipemorph, primus,
                        simumax, swift, torchtitan, vtrain)

CONVERTERS = {}
for module in (llm_foundry, vtrain, simumax, dgxc, nemo, bridge, mlperf,
               loongforge, flagperf, pipemorph, primus, torchtitan, llama32,
               internevo, nanotron, jax, mosaic, llava, long_sequences, hybrid,
               mimo, swift):
    CONVERTERS.update(module.SOURCES)
