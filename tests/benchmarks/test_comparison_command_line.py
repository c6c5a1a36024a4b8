from comparison.command_line import without_folders


def test_recorded_commands_keep_names_and_leave_out_where_files_are():
    arguments = ["/some/where/server", "-m", "/models/a.gguf", "--rates", "0.5,1", "benchmarks/peers_http.py"]
    assert without_folders(arguments) == ["server", "-m", "a.gguf", "--rates", "0.5,1", "benchmarks/peers_http.py"]
