"""What the programs of bench/ share. Standard library only, but for what ranks import: models, frameworks.

    options           options that the programs share
    places            where our programs and the Pythons are, and which peers are installed
    processes         a program that is told by lines and answers by lines; the ranks of a case; their memory
    rounds            cases take turns; ratios within a round, and their spread
    samples           measured values as JSON lines (--json), read back without measuring (--show); Markdown tables
    training_cases    models, frameworks, which of them fit into memory together
    training_runs     the ranks of one of them in training
    answers           a rank's side of processes
    models            BERT and GPT-2 in plain PyTorch
    frameworks        a training step by torch alone, DDP, FSDP2, and whichever `deepspeed` is found
"""
