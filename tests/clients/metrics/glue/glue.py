"""The metric "glue" of the task MRPC for evaluate.load where there is no network: accuracy and F1."""

import datasets
import evaluate
import numpy
from sklearn.metrics import f1_score


class Glue(evaluate.Metric):
    def _info(self):
        of = datasets.Value("int64")
        return evaluate.MetricInfo(description=__doc__, citation="", features=datasets.Features({"predictions": of, "references": of}))

    def _compute(self, predictions, references):
        return {"accuracy": float(numpy.mean(numpy.equal(predictions, references))), "f1": float(f1_score(y_true=references, y_pred=predictions))}
