"""Models inside wheels: fetched by pip's means, extracted once."""
