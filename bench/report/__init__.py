"""What bench/run does with the programs of bench/: parts (which it runs), machine (where), scaling, gap (wanted beside measured), results
(bench/results.md), plot (bench/results.svg)."""
