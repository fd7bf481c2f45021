"""RepoNavigator: find the functions an issue is about with one tool, jump to definition."""
