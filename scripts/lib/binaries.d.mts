export declare function findBinary(name: string): string | undefined
