# fish completion for neuronmlp. The command itself says what may come next (neuronmlp __complete WORDS…), one candidate a line, some with a
# tab and what they mean, as fish wants it; a line ":file" or ":dir" asks for names of files or directories too.
function __neuronmlp_complete
    set -l before (commandline -opc)
    set -l typed (commandline -ct)
    set -l front
    # the value in --option=value is what is being completed
    if string match -qr -- '^--[^=]*=' "$typed"
        set front (string replace -r -- '=.*' '=' "$typed")
        set before $before (string replace -r -- '=.*' '' "$typed") =
        set typed (string replace -r -- '^[^=]*=' '' "$typed")
    end
    for line in ($before[1] __complete $before[2..-1] "$typed" 2>/dev/null)
        switch $line
            case :file
                __fish_complete_path "$typed" | string replace -r '^' "$front"
            case :dir
                __fish_complete_directories "$typed" | string replace -r '^' "$front"
            case '*'
                echo "$front$line"
        end
    end
end
complete -c neuronmlp -f -a '(__neuronmlp_complete)'
