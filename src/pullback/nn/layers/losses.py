"""Losses and distances as layers, under PyTorch's names: `pb.nn`'s functions with their options."""

from __future__ import annotations

from pullback.nn.layers.functions import layer_of

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PairwiseDistance",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
]

BCELoss = layer_of("BCELoss", "binary_cross_entropy", 2, __name__)
BCEWithLogitsLoss = layer_of("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", 2, __name__)
CTCLoss = layer_of("CTCLoss", "ctc_loss", 4, __name__)
CosineEmbeddingLoss = layer_of("CosineEmbeddingLoss", "cosine_embedding_loss", 3, __name__)
CosineSimilarity = layer_of("CosineSimilarity", "cosine_similarity", 2, __name__)
CrossEntropyLoss = layer_of("CrossEntropyLoss", "cross_entropy", 2, __name__)
GaussianNLLLoss = layer_of("GaussianNLLLoss", "gaussian_nll_loss", 3, __name__)
HingeEmbeddingLoss = layer_of("HingeEmbeddingLoss", "hinge_embedding_loss", 2, __name__)
HuberLoss = layer_of("HuberLoss", "huber_loss", 2, __name__)
KLDivLoss = layer_of("KLDivLoss", "kl_div", 2, __name__)
L1Loss = layer_of("L1Loss", "l1_loss", 2, __name__)
MSELoss = layer_of("MSELoss", "mse_loss", 2, __name__)
MarginRankingLoss = layer_of("MarginRankingLoss", "margin_ranking_loss", 3, __name__)
MultiLabelMarginLoss = layer_of("MultiLabelMarginLoss", "multilabel_margin_loss", 2, __name__)
MultiLabelSoftMarginLoss = layer_of(
    "MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss", 2, __name__
)
MultiMarginLoss = layer_of("MultiMarginLoss", "multi_margin_loss", 2, __name__)
NLLLoss = layer_of("NLLLoss", "nll_loss", 2, __name__)
PairwiseDistance = layer_of("PairwiseDistance", "pairwise_distance", 2, __name__)
PoissonNLLLoss = layer_of("PoissonNLLLoss", "poisson_nll_loss", 2, __name__)
SmoothL1Loss = layer_of("SmoothL1Loss", "smooth_l1_loss", 2, __name__)
SoftMarginLoss = layer_of("SoftMarginLoss", "soft_margin_loss", 2, __name__)
TripletMarginLoss = layer_of("TripletMarginLoss", "triplet_margin_loss", 3, __name__)
