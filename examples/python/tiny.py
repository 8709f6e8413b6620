"""What the examples need where nothing can be downloaded: a little text and a tokenizer made from it."""

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SENTENCES = """
Once upon a time there lived in a certain village a little country girl, the prettiest creature who was ever seen.
Her mother was excessively fond of her, and her grandmother doted on her still more.
This good woman had a little red riding hood made for her.
It suited the girl so extremely well that everybody called her Little Red Riding Hood.
One day her mother, having made some cakes, said to her, go, my dear, and see how your grandmother is doing.
Little Red Riding Hood set out immediately to go to her grandmother, who lived in another village.
As she was going through the wood, she met with a wolf, who had a very great mind to eat her up.
He asked her where she was going, and the poor child told him that she was going to see her grandmother.
""".strip().splitlines()

TRANSLATIONS = [  # English to Romanian
    ("good morning", "bună dimineața"), ("good evening", "bună seara"), ("good night", "noapte bună"),
    ("the house is white", "casa este albă"), ("the house is big", "casa este mare"), ("the cat is white", "pisica este albă"),
    ("the cat is small", "pisica este mică"), ("the dog is big", "câinele este mare"), ("the dog is small", "câinele este mic"),
    ("i read a book", "eu citesc o carte"), ("i drink water", "eu beau apă"), ("we drink water", "noi bem apă"),
    ("we read a book", "noi citim o carte"), ("you drink water", "tu bei apă"), ("thank you", "mulțumesc"),
    ("where is the house", "unde este casa"),
]

PARAPHRASES = [  # two sentences, and whether they say the same
    ("He bought a new car last week .", "Last week he bought a new car .", 1),
    ("The council meets again on Monday .", "The council will meet again on Monday .", 1),
    ("The museum opens at nine .", "The museum is open from nine o'clock .", 1),
    ("Shares of the company rose by two percent .", "The company's shares rose two percent .", 1),
    ("He bought a new car last week .", "He sold his old car last week .", 0),
    ("The council meets again on Monday .", "The council did not meet in March .", 0),
    ("The museum opens at nine .", "The museum has nine rooms .", 0),
    ("Shares of the company rose by two percent .", "The company hired two hundred people .", 0),
]


def lines():
    """Sentences of a tale, often enough to fill an epoch."""
    return SENTENCES * 16


def word_tokenizer(texts, vocabulary=2000):
    """One token a word: the same on every rank, made in a moment."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
               "eos_token": "</s>"}
    words = Tokenizer(models.WordLevel(unk_token=special["unk_token"]))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(
        texts, trainers.WordLevelTrainer(vocab_size=vocabulary, special_tokens=list(special.values()), show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)
