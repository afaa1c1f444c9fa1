"""Records of whole models: the arrays that enter and leave every module, to compare or to judge."""
