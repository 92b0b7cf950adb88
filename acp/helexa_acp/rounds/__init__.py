"""One prompt's rounds: the model is asked, its answer split, and its calls judged and run."""
