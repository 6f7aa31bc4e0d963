# bash completion for neuronmlp. The command itself says what may come next (neuronmlp __complete WORDS…), one candidate a line, some with
# a tab and what they mean; a line ":file" or ":dir" asks for names of files or directories too.
_neuronmlp() {
    local current=${COMP_WORDS[COMP_CWORD]} line
    local -a words=()
    # bash splits at "=": in --option=value the value is what is being completed
    [[ $current == "=" ]] && current=""
    while IFS= read -r line; do
        case $line in
            :file) compopt -o filenames && mapfile -t -O "${#words[@]}" words < <(compgen -f -- "$current") ;;
            :dir) compopt -o filenames && mapfile -t -O "${#words[@]}" words < <(compgen -d -- "$current") ;;
            *) words+=("${line%%$'\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=("${words[@]}")
}
complete -F _neuronmlp neuronmlp
