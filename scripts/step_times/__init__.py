"""The sources of published step times, a module each.

A module has SOURCES: the name of a table, and for it the source's file, the
function that converts a row of it, and where it is from. The function returns a
row of the table, several, or None for a row that the table cannot say. A source
in Markdown is given to it whole.
"""

from step_times import (bloom, bridge, dgxc, flagperf, fms, hybrid, internevo,
                        jax, llama32, llava, llm_foundry, long_sequences,
                        loongforge, mimo, mlperf, mosaic, nanotron, nemo,
                        pipemorph, primus, recomputation, simumax, swift,
                        torchtitan, vtrain)

CONVERTERS = {}
for module in (llm_foundry, vtrain, simumax, dgxc, nemo, bridge, mlperf,
               loongforge, flagperf, pipemorph, primus, torchtitan, llama32,
               internevo, nanotron, jax, mosaic, llava, long_sequences, hybrid,
               mimo, swift, bloom, fms, recomputation):
    CONVERTERS.update(module.SOURCES)
